"""Assign the ops of a placed step to stages: forward ops by device, backward ops by the op they differentiate."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from partitioner.ir.op_graph import Op, Phase
from partitioner.stages.pieces import pieces
from partitioner.stages.roles import Role, Roles

# A sum of gradients is linear, so it may run after the sums over microbatches.
_SUM = "AddN"


class StageAssignment:
    """The ops of each stage, for one placement.

    Args:
        roles: The step.
        placement: Device of every op.
        devices: Devices that may hold a stage; None for all.

    Attributes:
        role: Role of each op; sums of gradients of several stages are updates here.
        device: The device that determines the stage of each op.
        stages: The device of each stage.
        stage: The stage of each forward and backward op.
        relocated: The new device of each op that cannot run on its own.
    """

    def __init__(self, roles: Roles, placement: Mapping[str, str], devices: Collection[str] | None) -> None:
        self.roles, self.graph, self.ops, self.inputs = roles, roles.graph, roles.ops, roles.inputs
        self.role = dict(roles.role)
        self.device = self._stage_devices(placement, devices)
        self.stages, self.stage = self._forward_stages()
        self._place_backward()
        self._delay_sums()
        self.relocated = {
            name: self.stages[stage]
            for name, stage in self.stage.items()
            if self.stages[stage] != placement[name] and (devices is None or placement[name] in devices)
        }

    def producer(self, tensor: str) -> str:
        """The op that makes a tensor."""
        return self.graph.tensor[tensor].producer

    def _stage_devices(self, placement: Mapping[str, str], devices: Collection[str] | None) -> dict[str, str]:
        """The device that determines the stage of each op: its own, or its reader's where its own holds no stages."""
        chosen = {op.name: placement[op.name] for op in self.ops if devices is None or placement[op.name] in devices}
        for op in reversed(self.ops):
            if op.name not in chosen:
                readers = (r for name in op.outputs for r in self.graph.consumers[name] if r in chosen)
                if (reader := next(readers, None)) is not None:
                    chosen[op.name] = chosen[reader]
        for op in self.ops:
            if op.name not in chosen:
                sources = (self.producer(name) for name in op.inputs)
                chosen[op.name] = next((chosen[s] for s in sources if s in chosen), placement[op.name])
        return chosen

    def _forward_stages(self) -> tuple[tuple[str, ...], dict[str, int]]:
        forward = [op for op in self.ops if self.role[op.name] is Role.FORWARD]
        # Backward-phase ops that need only forward values run with these values where they are on one device. But what
        # their own device gets anyway need not be there: shapes of it would be so many messages more.
        for op in forward:
            if op.phase is not Phase.FORWARD and not all(self._is_at_hand(name, op) for name in self.inputs[op.name]):
                sources = [
                    s for name in self.inputs[op.name] if self.role.get(s := self.producer(name)) is Role.FORWARD
                ]
                if len(devices := {self.device[source] for source in sources}) == 1:
                    self.device[op.name] = devices.pop()
        bodies = self.pieces(forward, late=self._of_state_alone(forward))
        stages = tuple(self.device[ops[0]] for ops in bodies)
        return stages, {name: index for index, ops in enumerate(bodies) for name in ops}

    def _is_at_hand(self, tensor: str, reader: Op) -> bool:
        """Whether the device of a backward op has a tensor, which is made there or read there by a forward op."""
        ops = (self.producer(tensor), *self.graph.consumers[tensor])
        device = self.device[reader.name]
        return any(self.device.get(name) == device and self.graph.op[name].phase is Phase.FORWARD for name in ops)

    def _of_state_alone(self, forward: Sequence[Op]) -> set[str]:
        """Ops that depend on carried state and on no rows, such as the decay of a moving average."""
        names: set[str] = set()
        for op in forward:
            sources = [*map(self.producer, self.inputs[op.name]), *(c for c in op.control_inputs if c in self.role)]
            if all(source in names or self.role[source] in (Role.COPIED, Role.ONCE) for source in sources):
                names.add(op.name)
        return names

    def pieces(self, ops: Sequence[Op], late: Collection[str] = ()) -> list[list[str]]:
        """Pieces of ops on one device; no piece waits for a later piece."""
        names = {op.name for op in ops}
        needs = {
            op.name: [s for s in (*map(self.producer, self.inputs[op.name]), *op.control_inputs) if s in names]
            for op in ops
        }
        return pieces([op.name for op in ops], needs, self.device, late)

    def _place_backward(self) -> None:
        """Assign each backward op to the stage of the op it differentiates, or to an earlier stage of its sources."""
        backward = [op for op in self.ops if self.role[op.name] is Role.BACKWARD]
        last = len(self.stages) - 1
        wanted = {op.name: self.stage[op.differentiates] for op in backward if op.differentiates in self.stage}
        for op in reversed(backward):
            if op.name not in wanted:
                readers = [wanted[r] for name in op.outputs for r in self.graph.consumers[name] if r in wanted]
                own = [s for s in range(last + 1) if self.stages[s] == self.device[op.name]]
                wanted[op.name] = max(readers, default=max(own, default=last))
        for op in backward:
            sources = [self.producer(name) for name in self.inputs[op.name] if name != self.roles.seed]
            limits = [self.stage[s] for s in sources if self.role[s] is Role.BACKWARD]
            self.stage[op.name] = min([wanted[op.name], *limits])

    def _delay_sums(self) -> None:
        """Make a sum of gradients of several stages an update op: each stage sums its own part over microbatches."""
        wanted = set(self.roles.results)
        for op in reversed(self.ops):
            if self.role[op.name] is not Role.BACKWARD or op.type != _SUM:
                continue
            sources = [self.producer(name) for name in self.inputs[op.name]]
            readers = [self.role[r] for name in op.outputs for r in self.graph.consumers[name] if r in self.roles.role]
            is_gradient = all(role is Role.UPDATE for role in readers) and (readers or wanted.intersection(op.outputs))
            if is_gradient and len({self.stage.get(s) for s in sources}) > 1:
                self.role[op.name] = Role.UPDATE
                del self.stage[op.name]
