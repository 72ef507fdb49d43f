"""Busy loops: how many cores they got by hand, and real ones that end with the context."""

from __future__ import annotations

from partitioner.timing.busy_loops import BusyLoops, busy_loops


def test_cores_are_work_at_once_over_the_fastest_alone() -> None:
    loops = BusyLoops(processes=[None, None], alone=[2.0, 1.0, 1.5], together=[1.0, 2.0, 1.1])  # type: ignore[list-item]
    assert loops.cores == (2.0, 1.0, 2 / 1.1)
    assert loops.disturbed == (1,)


def test_real_loops_run_and_end() -> None:
    with busy_loops(2) as loops:
        loops.run()
        loops.run()
        assert len(loops.alone) == len(loops.together) == len(loops.cores) == 2
        assert min(loops.alone + loops.together) > 0
        assert all(process.poll() is None for process in loops.processes)
    assert all(process.poll() is not None for process in loops.processes)
