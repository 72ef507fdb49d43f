"""A plan on other devices: names change and nothing else, figures count as assumed, wrong mappings are refused."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import pytest

from partitioner.errors import InfeasibleError, UsageError
from partitioner.hardware.retarget import retargeted, within
from partitioner.ir.plan import Origin, PlanDocument
from tests.commands import GOLDEN

PLAN = replace(PlanDocument.load(GOLDEN / "cli_plan.json"), request={"devices": "CPU:0,CPU:1"})
USED = [name.rpartition("device:")[2] for name in PLAN.used_devices]


def full(short: str) -> str:
    return f"/job:localhost/replica:0/task:0/device:{short}"


def test_every_name_changes_and_the_rest_stays() -> None:
    new = retargeted(PLAN, {"CPU:0": "GPU:2", "CPU:1": "GPU:5"})
    assert set(new.used_devices) == {full("GPU:2"), full("GPU:5")}
    text = new.to_json().replace(full("GPU:2"), full("CPU:0")).replace(full("GPU:5"), full("CPU:1"))
    changed = {"devices", "links", "notes", "verification", "measured", "what_if"}
    before, after = json.loads(PLAN.to_json()), json.loads(text)
    assert {name for name in before if before[name] != after[name]} <= changed
    assert full("CPU") not in json.dumps({name: msgspec.to_builtins(getattr(new, name)) for name in before})


def test_figures_count_as_assumed_and_a_note_says_for_what_they_were_predicted() -> None:
    new = retargeted(PLAN, {"CPU:1": "GPU:0"})
    origins = {info.name: info.origin for info in new.devices}
    assert origins[full("GPU:0")] is Origin.ASSUMED
    assert origins[full("CPU:0")] is PLAN.devices[0].origin
    assert all(link.origin is Origin.ASSUMED for link in new.links)
    assert new.notes[0].startswith("other devices than planned for: CPU:1 is GPU:0 now; times, memory and bounds are")
    assert PLAN.devices[1].hardware in new.notes[0]
    assert (new.verification, new.measured) == (None, None)


def test_devices_may_change_places_and_ranges_are_pairs() -> None:
    assert retargeted(PLAN, {"CPU:0-1": "CPU:1-2"}).used_devices == tuple(
        full({"CPU:0": "CPU:1", "CPU:1": "CPU:2"}[name]) for name in USED
    )
    swapped = retargeted(PLAN, {"CPU:0": "CPU:1", "CPU:1": "CPU:0"})
    assert [*reversed(swapped.used_devices)] == [*PLAN.used_devices]
    assert retargeted(PLAN, {"CPU:0": "CPU:0"}) == PLAN


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        ({"GPU:0": "CPU:0"}, "the plan has no GPU:0"),
        ({"CPU:0": "CPU:1"}, "CPU:0 and CPU:1 of the plan would both be CPU:1"),
        ({"CPU:0-1": "GPU:0"}, "CPU:0-1=GPU:0: 2 devices cannot become 1"),
        ({"CPU:0": "XPU:1"}, "1 of the devices is wrong"),
        ({"CPU:0": "GPU:0", "/CPU:0": "GPU:1"}, "CPU:0 is to become GPU:0 and GPU:1"),
    ],
)
def test_what_maps_to_no_plan_is_refused(devices: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        retargeted(PLAN, devices)
    assert refused.value.message == said
    assert refused.value.help


def test_parameters_of_asynchronous_replicas_stay_in_this_process() -> None:
    with pytest.raises(UsageError, match="/job:worker/task:0/CPU:0 is elsewhere"):
        retargeted(replace(PLAN, updates="async"), {USED[0]: "/job:worker/task:0/CPU:0"})


def test_limits_are_met_or_refused_with_the_numbers() -> None:
    peaks = PLAN.predicted.peak_bytes
    fits = within(PLAN, max(peaks.values()))
    assert {info.memory_bytes for info in fits.devices} == {max(peaks.values())}
    assert all(held.headroom_bytes == max(peaks.values()) - held.peak_bytes for held in fits.memory)
    with pytest.raises(InfeasibleError, match="the plan does not fit on CPU:0, CPU:1"):
        within(PLAN, 1)
    with pytest.raises(InfeasibleError, match="the plan does not fit on CPU:1"):
        within(PLAN, {"CPU:1": 1})
    with pytest.raises(UsageError, match="names GPU:0, which is not among the devices"):
        within(PLAN, {"GPU:0": 1})
