"""What devices of other hosts read: it gets to each of them, and neither enters nor leaves a host more than once."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from partitioner.ir.stage_programs import ProgramKind, StageProgram
from partitioner.stages.relays import relays


def on(task: int, index: int = 0) -> str:
    return f"/job:worker/replica:0/task:{task}/device:GPU:{index}"


def program(device: str, *inputs: str, makes: tuple[str, ...] = ()) -> StageProgram:
    return StageProgram(kind=ProgramKind.FORWARD, stage=0, device=device, ops=(), inputs=inputs, outputs=makes)


def test_by_hand() -> None:
    programs = [
        program(on(0), "batch", makes=("t", "u")),
        program(on(0, 1), "t"),
        program(on(1), "t", "batch"),
        program(on(1, 1), "t", "u", "batch"),
        program(on(2), "t"),
        program(on(1), "u"),
        program(on(1, 1), "t"),
    ]
    assert relays(programs) == {("t", on(1, 1)): on(1), ("t", on(2)): on(1), ("u", on(1)): on(1, 1)}


def test_what_is_read_on_the_host_that_made_it_comes_from_where_it_was_made() -> None:
    programs = [program(on(0), makes=("t",)), program(on(1), "t"), program(on(0, 1), "t"), program(on(0), "t")]
    assert relays(programs) == {}


def test_on_one_host_nothing_is_handed_on() -> None:
    assert relays([program(on(0), makes=("t",)), *(program(on(0, index), "t") for index in range(4))]) == {}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=12))
def test_each_host_gets_a_tensor_once_and_sends_it_to_one_other(readers: list[tuple[int, int]]) -> None:
    maker, targets = on(0), {on(*reader) for reader in readers} - {on(0)}
    found = relays([program(maker, makes=("t",)), *(program(on(*reader), "t") for reader in readers)])
    source = {target: found.get(("t", target), maker) for target in targets}
    for target in targets:
        way = [target]
        while way[-1] != maker:
            assert way[-1] in targets
            way.append(source[way[-1]])
            assert len(way) <= len(targets) + 1
    crossings = [(host_of(source[target]), host_of(target)) for target in targets]
    crossings = [(one, other) for one, other in crossings if one != other]
    assert max(Counter(one for one, _ in crossings).values(), default=0) <= 1
    assert Counter(other for _, other in crossings) == Counter({host_of(target) for target in targets} - {"0"})


def host_of(device: str) -> str:
    return device.split("task:")[1][0]
