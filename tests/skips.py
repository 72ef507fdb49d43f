"""Random steps whose layers are in a row, but for skip connections."""

from __future__ import annotations

from graphs import Builder
from hypothesis import strategies as st

from partitioner.ir.op_graph import Phase


@st.composite
def steps_with_skips(draw: st.DrawFn) -> Builder:
    """Layers in a row, of which some read an earlier one as well, directly or as a view; gradients mirror that.

    Some read a table, which waits for no row of the batch.
    """
    made, count = Builder(), draw(st.integers(3, 7))
    made.add("x", 0.0, type="Placeholder", layer="layer0")
    taken, sizes = st.sampled_from([0.0, 2**-9, 1.0, 4.0]), st.sampled_from([4, 256, 1024])
    skips = {i: draw(st.integers(0, i - 2)) for i in range(2, count) if draw(st.booleans())}
    size = [draw(sizes) for _ in range(count)]
    for i in range(count):
        reads = [f"f{i - 1}" if i else "x"]
        if i in skips:
            reads.append(f"f{skips[i]}")
            if draw(st.booleans()):
                reads[-1] = made.add(f"v{i}", 0.0, reads[-1], size_bytes=size[skips[i]], layer=f"layer{i}")
        if draw(st.booleans()):
            reads.append(made.add(f"table{i}", draw(taken), layer=f"layer{i}"))
        made.add(f"f{i}", draw(taken), *reads, size_bytes=size[i], layer=f"layer{i}")
    error = made.add("loss", 1.0, f"f{count - 1}", size_bytes=4)
    for i in reversed(range(count)):
        back = {"phase": Phase.BACKWARD, "layer": f"layer{i}", "differentiates": f"f{i}"}
        errors = [error, *(f"s{j}" for j, skipped in skips.items() if skipped == i)]
        if len(errors) > 1:
            error = made.add(f"a{i}", draw(taken), *errors, size_bytes=size[i], **back)
        made.add(f"d{i}", draw(taken), error, f"f{i}", **back)
        error = made.add(f"b{i}", draw(taken), error, f"f{i}", size_bytes=size[max(0, i - 1)], **back)
        if i in skips:
            views, skip = draw(st.integers(0, 3)), (f"s{i}", draw(taken), error, f"f{i}")
            turn = draw(st.sampled_from([0, views]))
            for view in range(views + 1):
                if view == turn:
                    made.add(*skip, size_bytes=size[skips[i]], **back)
                if view < views:
                    error = made.add(f"m{i}.{view}", 0.0, error, f"f{i}", size_bytes=size[i - 1], **back)
    return made
