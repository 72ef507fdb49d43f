"""Dependencies between the microbatches of a step: gathered values, and carried state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from partitioner.errors import UsageError
from partitioner.ir.stage_programs import CarriedState, Gather, StageProgram
from partitioner.spelling import argument
from partitioner.stages.roles import Role, Roles


def gathered(roles: Roles, role_of: Mapping[str, Role], update: Sequence[StageProgram]) -> dict[str, Gather]:
    """How values of microbatches are gathered for update programs and the caller."""
    sparse: dict[str, Gather] = {}
    for values, indices, *shape in roles.sparse_gradients:
        # Rows that every microbatch looks up (positions in a sentence) are summed like a dense gradient.
        same = role_of[roles.graph.tensor[indices].producer] in (Role.COPIED, Role.ONCE)
        sparse |= {values: Gather.SUM if same else Gather.CONCAT, indices: Gather.CONCAT}
        sparse |= dict.fromkeys(shape, Gather.FIRST)
    gathers: dict[str, Gather] = {}
    wanted = [name for program in update for name in program.inputs]
    for name in dict.fromkeys([*wanted, *roles.results]):
        role = role_of[roles.graph.tensor[name].producer]
        if role is Role.BACKWARD:
            gathers[name] = sparse.get(name, Gather.SUM)
        elif name in sparse and role not in (Role.COPIED, Role.ONCE):
            gathers[name] = sparse[name]
        elif role in (Role.FORWARD, Role.ARGUMENT) and name in wanted:
            op = roles.graph.op[roles.graph.tensor[name].producer]
            raise UsageError(
                f"microbatches: the update needs {name} ({op.type}) of the forward pass, which has one value per "
                "microbatch",
                help=argument("microbatches", 1),
            )
    return gathers


def staged_states(roles: Roles, role_of: Mapping[str, Role], stage_of: Mapping[str, int]) -> Iterator[CarriedState]:
    """The carried state with the stage that holds it."""
    for state in roles.states:
        users = {
            stage_of[r]
            for r in (roles.graph.consumers[state.read] if state.read else ())
            if role_of.get(r) is Role.FORWARD
        }
        maker = stage_of.get(roles.graph.tensor[state.written].producer, -1)
        if users and maker > min(users):
            layers = sorted({roles.graph.op[r].layer for r in roles.graph.consumers[state.read]})
            raise UsageError(
                f"microbatches: the variable {state.variable} is read by stage {min(users)} and written by stage "
                f"{maker}, so a microbatch would wait until the previous one has passed both",
                notes=[f"layers: {', '.join(layers)}"],
                help=f"pin these layers to one device, next to each other, or {argument('microbatches', 1)}",
            )
        yield CarriedState(variable=state.variable, stage=max([maker, *users]), read=state.read, written=state.written)
