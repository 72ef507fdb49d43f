"""Searches that run out of time: they end with the incumbent, or with an error."""

from __future__ import annotations

import time

import pytest
from graphs import chain, microbatching, pinned, pipeline, topology, training_chain

from partitioner.deadline import Deadline
from partitioner.errors import TimeLimitError
from partitioner.ir.plan import Strategy
from partitioner.planner.layouts.result import OutOfMemoryError
from partitioner.planner.layouts.search import search

MIB = 2**20


def test_a_share_of_the_time_left_ends_sooner() -> None:
    deadline = Deadline.after(100.0)
    assert not deadline.is_over
    assert deadline.at - deadline.at_share(0.25).at == pytest.approx(75.0, abs=0.5)


def test_what_is_over_stays_over() -> None:
    deadline = Deadline(time.monotonic() - 1.0)
    assert deadline.is_over
    assert deadline.seconds_left == 0.0
    assert deadline.at_share(0.5).is_over


def test_a_search_without_time_gives_the_best_of_the_simple_placements() -> None:
    """Four layers in a row on two devices: the same number on each is the only simple one that uses both."""
    costed = chain([1.0, 2.0, 3.0, 4.0], [4] * 4).costed(topology(2))
    result = search(costed, strategy=Strategy.LAYER_SPLIT, deadline=Deadline(time.monotonic()))
    assert len(set(result.placement.values())) == 2
    assert result.solver.status in ("optimal", "time-limit")
    (simple,) = (one for one in result.baselines if one.name == "equal-layers")
    assert result.solver.objective == simple.step_seconds


def test_a_search_without_time_says_that_it_found_nothing_in_time() -> None:
    """The heaviest layer and any other are too much for a device, as in every simple placement."""
    costed = chain([1.0] * 4, [4] * 4, [100 * MIB, 500 * MIB, 100 * MIB, 300 * MIB]).costed(
        topology(2, memory_bytes=520 * MIB)
    )
    with pytest.raises(TimeLimitError, match="no placement that fits was found within 60 s"):
        search(costed, strategy=Strategy.AUTO, deadline=Deadline(time.monotonic()))


def test_a_search_that_nobody_limited_names_no_limit_that_was_over() -> None:
    """Bug: U-Net on 64 devices was said to have no placement within 8 s, after 20, and 16 s were to help."""
    costed = chain([1.0] * 4, [4] * 4, [100 * MIB, 500 * MIB, 100 * MIB, 300 * MIB]).costed(
        topology(2, memory_bytes=520 * MIB)
    )
    over = Deadline(time.monotonic(), is_soft=True)
    with pytest.raises(TimeLimitError) as caught:
        search(costed, strategy=Strategy.AUTO, time_limit_seconds=8.0, deadline=over)
    assert caught.value.message == "no placement that fits was found"
    assert "time_limit=80.0" in str(caught.value)


@pytest.mark.parametrize("sizes", [[300, 300, 300, 300], [10, 600, 10, 10]], ids=["all", "one"])
def test_a_search_without_time_knows_that_variables_have_no_room(sizes: list[int]) -> None:
    """Bug: a short time limit only said that nothing was found in time, though nothing could ever fit."""
    costed = chain([1.0] * 4, [4] * 4, [size * MIB for size in sizes]).costed(topology(2, memory_bytes=520 * MIB))
    choices = microbatching(costed, 4)
    with pytest.raises(OutOfMemoryError, match="the model does not fit on the given devices"):
        search(costed, strategy=Strategy.AUTO, search_space=choices, deadline=Deadline(time.monotonic()))


@pytest.mark.parametrize("choices", [(), (2,)], ids=["whole", "microbatches"])
def test_a_search_without_time_knows_that_activations_have_no_room(choices: tuple[int, ...]) -> None:
    """Bug: on a busy machine a model of 46 parameters that needs 2.9 KiB was said not to be found in 2 KiB in time."""
    made = training_chain(4, parameter_bytes=MIB, slot_bytes=0, saved_bytes=1024 * MIB)
    costed = made.costed(topology(2, memory_bytes=520 * MIB))
    space = microbatching(costed, *choices, recompute="none") if choices else None
    with pytest.raises(OutOfMemoryError, match="the model does not fit on the given devices"):
        search(costed, strategy=Strategy.AUTO, search_space=space, deadline=Deadline(time.monotonic()))


def test_a_search_without_time_keeps_to_pins() -> None:
    """Bug: no placement that keeps to constraints was looked at once the time was over, and none was said to fit."""
    costed = chain([1.0] * 4, [4] * 4, [MIB] * 4).costed(topology(2))
    constraints = pinned(op0=1, op3=0)
    result = search(costed, strategy=Strategy.AUTO, constraints=constraints, deadline=Deadline(time.monotonic()))
    assert (result.placement["op0"], result.placement["op3"]) == (1, 0)


def test_a_search_without_time_passes_microbatches_where_they_are_asked_for() -> None:
    """Bug: the same with stages."""
    costed = pipeline(4, forward=8.0, backward=16.0).costed(topology(2))
    choices = microbatching(costed, 4)
    result = search(costed, strategy=Strategy.AUTO, search_space=choices, deadline=Deadline(time.monotonic()))
    assert result.num_microbatches == 4
