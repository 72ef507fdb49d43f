"""Which buffers are held while ops run one by one, by hand."""

from __future__ import annotations

from graphs import Builder, random_graphs
from hypothesis import given

from partitioner.ir.buffer_walk import Walk, walk
from partitioner.ir.op_graph import OpGraph


def run(graph: OpGraph, order: list[str] | None = None, *, kept=(), given=(), **how) -> Walk:
    return walk(
        graph.op,
        order or [op.name for op in graph.ops],
        given=given,
        kept=kept,
        size_bytes=lambda name: graph.tensor[name].size_bytes,
        **{"roots": {}, "aliases": {}} | how,
    )


def fork() -> Builder:
    """a (1024) -> b (512) -> c (256), and a -> d (2048), which reads c too; none may be written over."""
    made = Builder()
    made.add("a", 1.0, size_bytes=1024, type="MatMul")
    made.add("b", 1.0, "a", size_bytes=512, type="MatMul")
    made.add("c", 1.0, "b", size_bytes=256, type="MatMul")
    made.add("d", 1.0, "a", "c", size_bytes=2048, type="MatMul")
    return made


def test_the_peak_and_who_is_alive_by_hand() -> None:
    walked = run(fork().graph())
    assert walked.most_bytes == 1024 + 256 + 2048
    assert sorted(walked.alive()) == [("a:0", 1024), ("c:0", 256), ("d:0", 2048)]
    assert walked.left_bytes == 0  # nobody keeps d


def test_what_is_kept_is_left() -> None:
    walked = run(fork().graph(), kept=["d:0", "b:0"])
    assert (walked.most_bytes, walked.left_bytes) == (1024 + 512 + 256 + 2048, 512 + 2048)


def test_what_is_given_does_not_count() -> None:
    assert run(fork().graph(), ["b", "c", "d"], given=["a:0"]).most_bytes == 256 + 2048


def test_an_input_of_the_same_size_that_nobody_else_needs_is_written_over() -> None:
    made = Builder()
    made.add("a", 1.0, size_bytes=1024, type="MatMul")
    made.add("over", 1.0, "a", size_bytes=1024, type="Relu")
    made.add("beside", 1.0, "over", size_bytes=1024, type="MatMul")
    graph = made.graph()
    assert run(graph, ["a", "over"]).most_bytes == 1024
    assert run(graph).most_bytes == 2048
    # The caller still needs a, or has it from before.
    assert run(graph, ["a", "over"], kept=["a:0"]).most_bytes == 2048


def test_what_another_op_may_still_read_is_not_written_over() -> None:
    """`gate` reads a, and may run beside `half`; `both` reads what they make, and can come only after them."""
    made = Builder()
    made.add("a", 1.0, size_bytes=1024, type="MatMul")
    made.add("half", 1.0, "a", size_bytes=1024, type="Mul")
    made.add("gate", 1.0, "a", size_bytes=1024, type="Erf")
    made.add("both", 1.0, "half", "gate", size_bytes=1024, type="Mul")
    assert run(made.graph()).most_bytes == 2048
    assert run(made.graph(), overlapping=True).most_bytes == 3072
    assert run(made.graph(), overlapping=True, roots={"half:0": "a:0"}).most_bytes == 2048


def test_another_name_keeps_the_buffer() -> None:
    made = fork()
    made.add("again", 0.0, "b", size_bytes=512, type="Reshape")
    made.add("e", 1.0, "again", "d", size_bytes=256, type="MatMul")
    walked = run(made.graph(), roots={"again:0": "b:0"})
    assert walked.most_bytes == 1024 + 512 + 256 + 2048


def test_an_alias_is_read_in_place_of_the_other() -> None:
    made = fork()
    walked = run(made.graph(), aliases={"c:0": "b:0"})
    assert walked.most_bytes == 1024 + 512 + 2048


@given(random_graphs())
def test_it_is_at_least_what_an_op_reads_and_makes_and_at_most_everything(made: Builder) -> None:
    graph = made.graph()
    walked = run(graph)
    sizes = {tensor.name: tensor.size_bytes for tensor in graph.tensors}
    for op in graph.ops:
        reads = sum(sizes[name] for name in set(op.inputs))
        # Made where an input was, or beside it.
        assert walked.most_bytes >= max(reads, sum(sizes[name] for name in op.outputs))
        if op.type == "MatMul":
            assert walked.most_bytes >= reads + sum(sizes[name] for name in op.outputs)
    assert walked.most_bytes <= sum(sizes.values())
