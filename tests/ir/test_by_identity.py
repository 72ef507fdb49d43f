"""Results of functions, kept by the objects that these were given."""

from __future__ import annotations

from partitioner.ir.by_identity import ByIdentity


def test_a_function_runs_once_for_the_same_objects_and_equal_values() -> None:
    known, given, runs = ByIdentity(), [1], list[str]()

    def make(numbers: list[int], *, title: str) -> str:
        runs.append(title)
        return f"{title} of {len(numbers)}"

    titles = ("sum", "".join(["s", "um"]))  # equal, and not the same
    assert {known(make, given, title=title) for title in titles} == {"sum of 1"}
    assert runs == ["sum"]
    assert known(make, [1], title="sum") == "sum of 1"
    assert known(make, given, title="mean") == "mean of 1"
    assert runs == ["sum", "sum", "mean"]


def test_an_object_that_is_gone_is_taken_for_no_other() -> None:
    """CPython gives the next list the identity of the one before, if nobody keeps that."""
    known = ByIdentity()
    assert [known(sum, [number]) for number in range(50)] == list(range(50))
