"""Devices for the whole session: TensorFlow fixes them when it first runs anything."""

from __future__ import annotations

import gc
import os
import signal
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["XDG_CACHE_HOME"] = os.devnull  # no folder: nothing is known from earlier tests or runs

import pytest

NUM_LOGICAL_CPUS = 7

# A shell has its background jobs ignore Ctrl-C, and their children inherit that; tests press it.
signal.signal(signal.SIGINT, signal.default_int_handler)


LISTS = {mark: Path(__file__).with_name(f"{mark}.txt") for mark in ("slow", "grid")}
"""Files, tests and cases that take longest, by `pytest --durations=0`, under the mark that they get."""


SHARED = ("test_two_processes.py", "test_async_processes.py")
"""Files whose tests share what takes a minute to make."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    names = {item: {item.nodeid, item.nodeid.partition("[")[0], item.nodeid.partition("::")[0]} for item in items}
    for mark, path in LISTS.items():
        listed = set(path.read_text(encoding="utf-8").splitlines())
        for item in items:
            if names[item] & listed:
                item.add_marker(mark)
        gone = listed - {name for of_item in names.values() for name in of_item}
        if gone and config.args == config.getini("testpaths"):
            raise pytest.UsageError(f"{path.name} names tests that there are not: {', '.join(sorted(gone))}")
    # They come first, so that one process runs them all: others take tests from the end of its queue.
    items.sort(key=lambda item: item.path.name not in SHARED)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Let the garbage collector pass over what is left of a test: TensorFlow keeps every graph."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def logical_cpus() -> list[str]:
    """Names of the logical CPU devices that stand in for GPUs here."""
    import partitioner

    names = [f"CPU:{index}" for index in range(NUM_LOGICAL_CPUS)]
    partitioner.set_up_devices(names)
    return names


@pytest.fixture(scope="session", autouse=True)
def brief_measuring(logical_cpus: list[str]) -> Iterator[None]:
    """Measuring has three seconds in place of thirty: tests look at what is measured, not at how exactly."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("partitioner.measure.choose.MEASURING_SECONDS", 3.0)
        yield


@pytest.fixture
def optimized_alike() -> Iterator[None]:
    """Keras' own steps are optimized as placed ones are: no sums are merged, in an order that follows from names."""
    from partitioner.emit.graph.rewriting import op_by_op

    with op_by_op():
        yield


@pytest.fixture
def fresh_keras() -> None:
    """Layer names and random numbers as in a new process."""
    import keras

    keras.backend.clear_session()
    keras.utils.set_random_seed(0)


@pytest.fixture
def child_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Put another program in the solver's place: real processes, a child that misbehaves."""

    def install(source: str) -> None:
        script = tmp_path / "child"
        script.write_text(f"#!{sys.executable}\n{textwrap.dedent(source)}")
        script.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(script))

    return install
