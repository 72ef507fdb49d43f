"""Which ops run again in selective recompute: those that free most for little."""

from __future__ import annotations

from graphs import SECOND, Builder

from partitioner.ir.op_graph import Phase
from partitioner.planner.pipeline.op_places import depending_on_rows
from partitioner.planner.pipeline.selective import Selective, selective

MIB = 2**20
PRODUCT = 1_000 * (MIB // 4) / SECOND
"""Seconds of an op that takes 1,000 FLOPs for each of the elements of 1 MiB."""


def chosen(made: Builder) -> Selective:
    costed = made.costed()
    return selective(costed, depending_on_rows(costed.graph))


def block(*elementwise: tuple[str, ...], saved: str) -> Builder:
    """A product of matrices of the batch, ops that work element by element, and a backward op that reads some of all.

    Args:
        elementwise: A name and the names that it reads, 1 MiB each.
        saved: Names that the backward reads.
    """
    made = Builder()
    made.add("x", 0.0, size_bytes=MIB, type="Placeholder")
    made.add("product", PRODUCT, "x", size_bytes=MIB)
    for name, *reads in elementwise:
        made.add(name, 0.001, *reads, size_bytes=MIB)
    made.add("back", 1.0, *saved.split(), size_bytes=4, phase=Phase.BACKWARD)
    return made


def test_an_activation_function_is_made_again_from_the_product_before_it() -> None:
    """Three tensors are kept otherwise: the argument of the function, what it needs of that, and its result."""
    found = chosen(block(("a", "product"), ("b", "a"), ("c", "a", "b"), saved="a b c"))
    assert found.ops == {"b", "c"}
    assert dict(found.kept) == {"a:0": "a"}  # as large as the product, and one op less to run


def test_what_frees_nothing_is_kept() -> None:
    found = chosen(block(("bias", "product"), ("relu", "bias"), saved="relu"))
    assert found.ops == frozenset()
    assert dict(found.kept) == {"relu:0": "relu"}


def test_products_of_layers_are_kept_and_those_of_attention_made_again() -> None:
    """Queries and keys of 1 MiB each give 16 MiB of scores, for 64 FLOPs an element."""
    made = Builder()
    made.add("x", 0.0, size_bytes=MIB, type="Placeholder")
    made.add("q", PRODUCT, "x", size_bytes=MIB)
    made.add("k", PRODUCT, "x", size_bytes=MIB)
    made.add("scores", 64 * 4 * MIB / SECOND, "q", "k", size_bytes=16 * MIB)
    made.add("softmax", 0.001, "scores", size_bytes=16 * MIB)
    made.add("back", 1.0, "q", "k", "softmax", size_bytes=4, phase=Phase.BACKWARD)
    found = chosen(made)
    assert found.ops == {"scores", "softmax"}
    assert set(found.kept) == {"q:0", "k:0"}


def test_a_residual_stream_is_kept_so_that_layers_are_not_made_again_from_the_first_on() -> None:
    made = block(("s1", "x", "product"), ("n1", "s1"), saved="s1 n1")
    made.add("p2", PRODUCT, "n1", size_bytes=MIB)
    made.add("s2", 0.001, "s1", "p2", size_bytes=MIB)
    made.add("n2", 0.001, "s2", size_bytes=MIB)
    made.add("back2", 1.0, "s2", "n2", size_bytes=4, phase=Phase.BACKWARD)
    found = chosen(made)
    assert found.ops == {"n1", "n2"}
    assert set(found.kept) == {"s1:0", "s2:0"}


def test_what_draws_numbers_is_kept() -> None:
    made = block(saved="product")
    made.variable("state", 8)
    made.add("mask", 0.001, "product", size_bytes=MIB, variables=["state"])
    made.add("dropped", 0.001, "product", "mask", size_bytes=MIB)
    made.add("back2", 1.0, "dropped", "mask", size_bytes=4, phase=Phase.BACKWARD)
    found = chosen(made)
    assert found.ops == {"dropped"}
    assert set(found.kept) == {"product:0", "mask:0"}
