"""Schedules: grids drawn by hand, bubbles and live microbatches as the papers have them, no deadlocks anywhere."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitioner.errors import UsageError
from partitioner.stages.actions import Action, ActionKind
from partitioner.stages.schedules import ScheduleKind, device_orders, max_live, max_waiting, merged_order
from tests.golden_schedules import golden_schedules

FREE_KINDS = [kind for kind in ScheduleKind if kind not in (ScheduleKind.INTERLEAVED, ScheduleKind.ZB_V)]
Orders = Mapping[str, Sequence[Action]]

num_microbatches = st.integers(1, 12)
stage_maps = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6)
one_each = st.integers(1, 6).map(lambda num_stages: list("abcdef"[:num_stages]))
# Devices, stages per device, microbatches per device.
dealt = st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4))


def parse(text: str) -> tuple[Action, ...]:
    return tuple(Action.parse(word) for word in text.split())


def needed(action: Action, num_stages: int) -> set[Action]:
    forwards = [Action(stage, ActionKind.FORWARD, action.microbatch) for stage in range(num_stages)]
    backwards = [Action(stage, ActionKind.BACKWARD, action.microbatch) for stage in reversed(range(num_stages))]
    path = forwards + backwards
    if action.kind is ActionKind.WEIGHTS:
        return set(path[: 1 + path.index(Action(action.stage, ActionKind.BACKWARD, action.microbatch))])
    return set(path[: path.index(action)])


def ticks(orders: Orders, num_stages: int) -> dict[Action, int]:
    """When each action runs if each takes one tick and starts as early as it can."""
    started: dict[Action, int] = {}
    tick, left = 0, {device: list(actions) for device, actions in orders.items()}
    while any(left.values()):
        earlier = set(started)
        for actions in left.values():
            if actions and needed(actions[0], num_stages) <= earlier:
                started[actions.pop(0)] = tick
        assert len(started) > len(earlier), f"deadlock: {left}"
        tick += 1
    return started


def grid(orders: Orders, num_stages: int) -> str:
    started = ticks(orders, num_stages)
    length = 1 + max(started.values())
    lines = []
    for device, actions in orders.items():
        cells = [" . "] * length
        for action in actions:
            cells[started[action]] = str(action)
        lines.append(f"{device} | {' '.join(cells)}".rstrip())
    return "\n".join(lines)


def case_name(value: object) -> str | None:
    return "".join(value) if isinstance(value, list) else "" if "|" in str(value) else str(value)


@pytest.mark.parametrize(("kind", "stage_devices", "num_microbatches", "expected"), golden_schedules(), ids=case_name)
def test_golden_grid(kind: ScheduleKind, stage_devices: list[str], num_microbatches: int, expected: str) -> None:
    assert grid(device_orders(kind, stage_devices, num_microbatches), len(stage_devices)) == expected


@pytest.mark.parametrize("kind", FREE_KINDS)
def test_goldens_cover_two_to_four_stages(kind: ScheduleKind) -> None:
    covered = {("".join(devices), microbatches) for of, devices, microbatches, _ in golden_schedules() if of is kind}
    assert covered >= {(devices, microbatches) for devices in ("ab", "abc", "abcd") for microbatches in (1, 4, 8)}


@given(one_each, num_microbatches)
def test_the_bubble_of_gpipe_and_1f1b_is_that_of_the_papers(stage_devices: list[str], microbatches: int) -> None:
    num_stages = len(stage_devices)
    for kind in (ScheduleKind.GPIPE, ScheduleKind.ONE_F_ONE_B):
        length = 1 + max(ticks(device_orders(kind, stage_devices, microbatches), num_stages).values())
        idle = length - 2 * microbatches
        # Idle / length = (S - 1) / (M + S - 1), in integers.
        assert idle * (microbatches + num_stages - 1) == (num_stages - 1) * length


@given(one_each, num_microbatches)
def test_1f1b_with_one_stage_per_device_warms_up_alternates_and_drains(
    stage_devices: list[str], microbatches: int
) -> None:
    orders = device_orders(ScheduleKind.ONE_F_ONE_B, stage_devices, microbatches)
    for stage, device in enumerate(stage_devices):
        warmup = min(microbatches, len(stage_devices) - 1 - stage)
        kinds = "F" * warmup + "FB" * (microbatches - warmup) + "B" * warmup
        assert "".join(action.kind for action in orders[device]) == kinds


@given(st.integers(1, 6), st.integers(0, 8))
def test_the_bubble_of_zb_h1_is_that_of_the_paper(num_stages: int, more: int) -> None:
    """(S - 1)(F + B - W) with F = B = W, where a stage has enough microbatches to be ahead with."""
    microbatches = num_stages + more
    orders = device_orders(ScheduleKind.ZB_H1, list("abcdef"[:num_stages]), microbatches)
    assert 1 + max(ticks(orders, num_stages).values()) == 3 * microbatches + num_stages - 1


@given(stage_maps, num_microbatches)
def test_zb_h1_holds_no_more_microbatches_than_the_first_stage_of_1f1b(
    stage_devices: list[str], microbatches: int
) -> None:
    for actions in device_orders(ScheduleKind.ZB_H1, stage_devices, microbatches).values():
        held: Counter[int] = Counter()
        for action in actions:
            held[action.stage] += {ActionKind.FORWARD: 1, ActionKind.BACKWARD: 0, ActionKind.WEIGHTS: -1}[action.kind]
            assert held[action.stage] <= len(stage_devices)


@given(one_each, num_microbatches)
def test_in_zb_h2_no_stage_waits_once_it_has_begun(stage_devices: list[str], more: int) -> None:
    num_stages = len(stage_devices)
    microbatches = 2 * num_stages - 2 + more
    orders = device_orders(ScheduleKind.ZB_H2, stage_devices, microbatches)
    started = ticks(orders, num_stages)
    for stage, device in enumerate(stage_devices):
        assert [started[action] for action in orders[device]] == [*range(stage, stage + 3 * microbatches)]


@given(one_each, num_microbatches)
def test_gradients_of_weights_wait_for_the_stages_before(stage_devices: list[str], microbatches: int) -> None:
    for kind, times in ((ScheduleKind.ZB_H1, 1), (ScheduleKind.ZB_H2, 2)):
        orders = device_orders(kind, stage_devices, microbatches)
        waiting = [max_waiting(orders[device])[stage] for stage, device in enumerate(stage_devices)]
        assert waiting == [min(times * stage, microbatches - 1) for stage in range(len(stage_devices))]


@given(one_each, num_microbatches)
def test_zb_h2_holds_fewer_than_twice_the_microbatches_of_zb_h1(stage_devices: list[str], microbatches: int) -> None:
    for actions in device_orders(ScheduleKind.ZB_H2, stage_devices, microbatches).values():
        held = 0
        for action in actions:
            held += {ActionKind.FORWARD: 1, ActionKind.BACKWARD: 0, ActionKind.WEIGHTS: -1}[action.kind]
            assert held <= 2 * len(stage_devices) - 1


@pytest.mark.parametrize("num_devices", range(2, 9))
def test_in_zb_v_nobody_waits_once_the_last_device_has_begun(num_devices: int) -> None:
    """Where halves of a device's work take one tick forward, one backward and one for weights, and hops none, the last
    device begins after D - 1 ticks, and nobody waits after it has begun."""
    devices, microbatches = list("abcdefgh"[:num_devices]), 2 * num_devices
    stage_devices = ScheduleKind.ZB_V.stages_on(devices)
    orders = device_orders(ScheduleKind.ZB_V, stage_devices, microbatches)
    ends: dict[Action, int] = {}
    free = dict.fromkeys(devices, 0)
    for action in merged_order(orders, len(stage_devices)):
        device = stage_devices[action.stage]
        ticks_of_action = 2 // stage_devices.count(device)
        start = max([free[device], *(ends[one] for one in needed(action, len(stage_devices)))])
        ends[action] = free[device] = start + ticks_of_action
    assert max(free.values()) == 6 * microbatches + num_devices - 1


@given(one_each, num_microbatches)
def test_zb_v_holds_four_halves_for_each_device_at_the_most(devices: list[str], microbatches: int) -> None:
    stage_devices = ScheduleKind.ZB_V.stages_on(devices)
    for device, actions in device_orders(ScheduleKind.ZB_V, stage_devices, microbatches).items():
        held, halves = 0, 2 // stage_devices.count(device)
        for action in actions:
            held += {ActionKind.FORWARD: 1, ActionKind.BACKWARD: 0, ActionKind.WEIGHTS: -1}[action.kind]
            assert held * halves <= 4 * len(devices)


@pytest.mark.parametrize("stage_devices", ["ab", "abab", "aab", "abcab", "abba"])
def test_zb_v_needs_stages_there_and_back(stage_devices: str) -> None:
    with pytest.raises(UsageError, match="there and back") as caught:
        device_orders(ScheduleKind.ZB_V, stage_devices, 4)
    assert f"{len(stage_devices)} stages on: {', '.join(stage_devices)}" in str(caught.value)


@given(stage_maps, num_microbatches)
def test_forwards_and_backwards_of_zb_h1_come_as_in_1f1b(stage_devices: list[str], microbatches: int) -> None:
    without = {
        device: tuple(action for action in actions if action.kind is not ActionKind.WEIGHTS)
        for device, actions in device_orders(ScheduleKind.ZB_H1, stage_devices, microbatches).items()
    }
    assert without == device_orders(ScheduleKind.ONE_F_ONE_B, stage_devices, microbatches)


@given(dealt)
def test_interleaving_divides_the_bubble_by_the_stages_per_device(case: tuple[int, int, int]) -> None:
    num_devices, per_device, groups = case
    stage_devices = list("abcd"[:num_devices]) * per_device
    microbatches = groups * num_devices
    orders = device_orders(ScheduleKind.INTERLEAVED, stage_devices, microbatches)
    length = 1 + max(ticks(orders, len(stage_devices)).values())
    assert length - 2 * microbatches * per_device == 2 * (num_devices - 1)


@given(one_each, num_microbatches)
def test_live_microbatches_with_one_stage_per_device(stage_devices: list[str], microbatches: int) -> None:
    num_stages = len(stage_devices)

    def live(kind: ScheduleKind) -> dict[int, int]:
        return max_live(merged_order(device_orders(kind, stage_devices, microbatches), num_stages))

    assert live(ScheduleKind.SEQUENTIAL) == dict.fromkeys(range(num_stages), 1)
    assert live(ScheduleKind.GPIPE) == dict.fromkeys(range(num_stages), microbatches)
    assert live(ScheduleKind.ONE_F_ONE_B) == {s: min(microbatches, num_stages - s) for s in range(num_stages)}


@given(stage_maps, num_microbatches)
def test_1f1b_bounds_live_microbatches_on_any_devices(stage_devices: list[str], microbatches: int) -> None:
    orders = device_orders(ScheduleKind.ONE_F_ONE_B, stage_devices, microbatches)
    for actions in orders.values():
        for stage, live in max_live(actions).items():
            assert live <= min(microbatches, len(stage_devices) - stage)


@given(stage_maps, num_microbatches)
def test_gpipe_runs_all_forwards_of_a_device_first(stage_devices: list[str], microbatches: int) -> None:
    for actions in device_orders(ScheduleKind.GPIPE, stage_devices, microbatches).values():
        kinds = "".join(action.kind for action in actions)
        assert kinds == "F" * (len(kinds) // 2) + "B" * (len(kinds) // 2)


@given(stage_maps, num_microbatches)
def test_sequential_runs_one_microbatch_after_the_other(stage_devices: list[str], microbatches: int) -> None:
    orders = device_orders(ScheduleKind.SEQUENTIAL, stage_devices, microbatches)
    started = ticks(orders, len(stage_devices))
    assert sorted(started.values()) == list(range(2 * len(stage_devices) * microbatches))
    in_time = sorted(started, key=lambda action: started[action])
    assert [action.microbatch for action in in_time] == sorted(action.microbatch for action in in_time)


@given(stage_maps, num_microbatches, st.sampled_from(FREE_KINDS), st.booleans())
def test_any_schedule_on_any_devices_runs_every_action_once(
    stage_devices: list[str], microbatches: int, kind: ScheduleKind, training: bool
) -> None:
    check_complete(kind, stage_devices, microbatches, training)


@given(dealt, st.booleans())
def test_interleaved_runs_every_action_once(case: tuple[int, int, int], training: bool) -> None:
    num_devices, per_device, groups = case
    check_complete(ScheduleKind.INTERLEAVED, list("abcd"[:num_devices]) * per_device, groups * num_devices, training)


@given(one_each, num_microbatches)
def test_zb_v_runs_every_action_once(devices: list[str], microbatches: int) -> None:
    check_complete(ScheduleKind.ZB_V, [*ScheduleKind.ZB_V.stages_on(devices)], microbatches, training=True)
    check_complete(ScheduleKind.ZB_V, devices, microbatches, training=False)


def check_complete(kind: ScheduleKind, stage_devices: list[str], microbatches: int, training: bool) -> None:
    orders = device_orders(kind, stage_devices, microbatches, training=training)
    assert list(orders) == list(dict.fromkeys(stage_devices))
    merged = merged_order(orders, len(stage_devices))
    assert Counter(map(str, merged)) == Counter(
        f"{s}{k}{m}"
        for s in range(len(stage_devices))
        for m in range(microbatches)
        for k in (("FBW" if kind.parts_backward else "FB") if training else "F")
    )
    for device, actions in orders.items():
        assert tuple(action for action in merged if stage_devices[action.stage] == device) == tuple(actions)
        for stage in {action.stage for action in actions}:
            for letter in ActionKind:
                turns = [a.microbatch for a in actions if a.stage == stage and a.kind is letter]
                assert turns == sorted(turns)
    for position, action in enumerate(merged):
        assert needed(action, len(stage_devices)) <= set(merged[:position])


@given(one_each, num_microbatches)
def test_interleaved_with_one_stage_per_device_is_1f1b(stage_devices: list[str], groups: int) -> None:
    microbatches = groups * len(stage_devices)
    assert device_orders(ScheduleKind.INTERLEAVED, stage_devices, microbatches) == device_orders(
        ScheduleKind.ONE_F_ONE_B, stage_devices, microbatches
    )


@pytest.mark.parametrize("kind", FREE_KINDS)
def test_inference_runs_only_forwards(kind: ScheduleKind) -> None:
    orders = device_orders(kind, ["a", "b"], 3, training=False)
    assert orders == {"a": parse("0F0 0F1 0F2"), "b": parse("1F0 1F1 1F2")}


def test_inference_continues_old_microbatches_before_it_starts_new_ones() -> None:
    # 1F0 is older than 0F1; 3F0 is older still than 1F1, but b makes it ready only while a runs 0F1.
    orders = device_orders(ScheduleKind.GPIPE, ["a", "a", "b", "a"], 2, training=False)
    assert orders == {"a": parse("0F0 1F0 0F1 3F0 1F1 3F1"), "b": parse("2F0 2F1")}


@pytest.mark.parametrize(
    ("devices", "microbatches", "works"),
    [("abcd", 6, "take 4 or 8 microbatches"), ("ab", 1, "take 2 microbatches"), ("abc", 7, "take 6 or 9 microbatches")],
)
def test_interleaved_says_which_numbers_of_microbatches_work(devices: str, microbatches: int, works: str) -> None:
    with pytest.raises(UsageError) as caught:
        device_orders(ScheduleKind.INTERLEAVED, list(devices) * 2, microbatches)
    assert works in str(caught.value)
    assert f"{microbatches} microbatches, {len(devices)} devices" in str(caught.value)


@pytest.mark.parametrize("stage_devices", ["abba", "aab", "aba", "aabb", "abcabd"])
def test_interleaved_needs_stages_dealt_round_robin(stage_devices: str) -> None:
    with pytest.raises(UsageError, match="dealt round robin") as caught:
        device_orders(ScheduleKind.INTERLEAVED, stage_devices, 12)
    assert f"{len(stage_devices)} stages on: {', '.join(stage_devices)}" in str(caught.value)


@pytest.mark.parametrize(("stage_devices", "microbatches"), [([], 2), (["a"], 0)])
@pytest.mark.parametrize("kind", ScheduleKind)
def test_nothing_to_schedule_is_refused(kind: ScheduleKind, stage_devices: list[str], microbatches: int) -> None:
    with pytest.raises(UsageError, match=f"not {len(stage_devices)} and {microbatches}"):
        device_orders(kind, stage_devices, microbatches)


def test_merging_names_the_actions_that_wait_for_each_other() -> None:
    # a wants 0B0 before 0F1, b wants 1F1 before 1B0.
    orders = {"a": parse("0F0 0B0 0F1 0B1"), "b": parse("1F0 1F1 1B0 1B1")}
    with pytest.raises(ValueError, match="wait for each other") as caught:
        merged_order(orders, 2)
    circle = re.findall(r"\d+[FB]\d+", str(caught.value))
    assert circle[0] == circle[-1]
    waits = {("0B0", "1B0"), ("1B0", "1F1"), ("1F1", "0F1"), ("0F1", "0B0")}
    assert set(pairwise(circle)) == waits


def test_a_backward_waits_for_the_forward_of_its_stage() -> None:
    with pytest.raises(ValueError, match="0B0 waits for 0F0"):
        merged_order({"a": parse("0B0 0F0")}, 1)


def test_merging_names_an_action_that_nobody_runs() -> None:
    with pytest.raises(ValueError, match="1F0 on b waits for 0F0, which no device runs"):
        merged_order({"a": parse("0F1"), "b": parse("1F0")}, 2)


def test_live_microbatches_are_counted_by_stage() -> None:
    assert max_live(parse("0F0 0F1 1F0 1B0 0B0 0F2 1F1 1B1 0F3 0B1 0B2 0B3")) == {0: 3, 1: 1}
