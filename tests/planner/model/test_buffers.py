"""Which tensors share memory, and what outlives its phase."""

from __future__ import annotations

from graphs import Builder, training_chain

from partitioner.ir.op_graph import Phase
from partitioner.planner.model.buffers import Buffers, total_bytes


def test_a_chain_of_handed_on_buffers_has_one_root() -> None:
    made = Builder()
    made.add("a", 1.0, size_bytes=512)
    made.add("reshape", 0.0, "a", size_bytes=512)
    made.add("identity", 0.0, "reshape", size_bytes=512)
    made.add("shape", 0.0, "a", size_bytes=16)
    buffers = Buffers(made.costed())
    assert buffers.root("identity:0") == buffers.root("a:0") == "a:0"
    assert buffers.root("shape:0") == "shape:0"


def test_reading_a_variable_hands_on_its_buffer() -> None:
    made = Builder()
    made.variable("w", 512)
    made.add("read", 0.0, size_bytes=512, variables=["w"])
    made.add("identity", 0.0, "read", size_bytes=512)
    assert Buffers(made.costed()).root("identity:0") is None


def test_kept_are_what_the_backward_pass_reads_and_the_gradients() -> None:
    made = training_chain(2, parameter_bytes=1024, slot_bytes=0, saved_bytes=512)
    buffers = Buffers(made.costed())
    # f0 and f1 for the backward ops, loss as the first gradient; d0 and d1 for the update.
    assert buffers.kept == {"f0:0": "f0", "f1:0": "f1", "loss:0": "loss", "d0:0": "d0", "d1:0": "d1"}
    assert buffers.gradients == {"d0:0", "d1:0"}


def test_looking_at_a_shape_keeps_nothing() -> None:
    made = Builder()
    made.add("a", 1.0, size_bytes=512)
    made.add("shape", 0.0, "a", size_bytes=16, phase=Phase.BACKWARD, type="Shape")
    made.add("back", 1.0, "shape", phase=Phase.BACKWARD)
    assert Buffers(made.costed()).kept == {}


def test_a_tensor_kept_under_another_name_is_kept_at_its_root() -> None:
    made = Builder()
    made.add("a", 1.0, size_bytes=512)
    made.add("reshape", 0.0, "a", size_bytes=512)
    made.add("back", 1.0, "reshape", phase=Phase.BACKWARD)
    assert Buffers(made.costed()).kept == {"a:0": "a"}


def test_total_bytes_by_hand() -> None:
    made = training_chain(3, parameter_bytes=1024, slot_bytes=2048, saved_bytes=512)
    assert total_bytes(made.costed()) == {
        "parameters": 3 * 1024,
        "gradients": 3 * 1024,
        "slots": 3 * 2048,
        "other state": 0,
        "activations": 3 * 512 + 256,
    }


def test_what_costs_nothing_and_is_as_large_hands_on_its_input() -> None:
    made = Builder()
    made.add("a", 1.0, size_bytes=512)
    made.add("same", 0.0, "a", size_bytes=512, type="Sum")
    made.add("less", 0.0, "a", size_bytes=256, type="Sum")
    made.add("works", 1.0, "a", size_bytes=512, type="Sum")
    buffers = Buffers(made.costed())
    assert [buffers.root(f"{name}:0") for name in ("same", "less", "works")] == ["a:0", "less:0", "works:0"]
