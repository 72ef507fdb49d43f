"""How a step runs: the placement of its ops, its schedule, and its replicas."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from partitioner.ir.devices import DeviceName

SEED_STRIDE = 0x9E3779B9
"""Added to the random state of each replica, times its number; odd, so that 2^32 replicas draw different numbers."""


@dataclass(frozen=True, kw_only=True)
class Execution:
    """A placement and a schedule for one step.

    Attributes:
        placement: Device of every op, in the first replica.
        stage_devices: Devices that may hold a stage there; ops elsewhere (on the host of a GPU) belong to their
            readers.
        num_microbatches: Parts that the batch of a replica is cut into.
        schedule: Order of the stages' work, by the name of a `ScheduleKind`.
        recompute: Stages that rerun their forward ops in the backward pass.
        rerun: Of those that rerun only some of them (selective recompute), these; others rerun all.
        replicas: For each replica beyond the first, its device by the stage device of the first replica. Replicas may
            share devices, and then the variables there.
        alone: Only the first replica runs; the others still have copies of the variables.
        hosts: By device that is a GPU of the plan, in any replica, the CPU that runs what a GPU cannot.
        compiled: The devices whose programs XLA compiles, in all replicas.
        delays_gradients: Whether gradients are delayed that no other device waits for, if the step is not staged.
    """

    placement: Mapping[str, str]
    stage_devices: Collection[str]
    num_microbatches: int = 1
    schedule: str = "sequential"
    recompute: Collection[int] = ()
    rerun: Mapping[int, frozenset[str]] = field(default_factory=dict)
    replicas: tuple[Mapping[str, str], ...] = ()
    alone: bool = False
    hosts: Mapping[str, str] = field(default_factory=dict)
    compiled: Collection[str] = ()
    delays_gradients: bool = False

    @property
    def is_staged(self) -> bool:
        """Whether the step runs as stage programs; otherwise as one graph, every op as soon as it can."""
        staged = self.num_microbatches > 1 or self.schedule != "sequential" or bool(self.recompute)
        return staged or self.num_replicas > 1

    @property
    def num_replicas(self) -> int:
        """How many replicas run."""
        return 1 if self.alone else 1 + len(self.replicas)

    @property
    def num_parts(self) -> int:
        """How many parts the batch is cut into: the microbatches of all replicas."""
        return self.num_replicas * self.num_microbatches

    def host_of(self, device: str) -> str:
        """Where ops of a device run for which it has no kernel: a CPU runs everything itself."""
        return self.hosts.get(device, device)

    def device(self, of_first: str, replica: int) -> str:
        """The peer, in a replica, of a stage device of the first replica or of its host."""
        if replica == 0:
            return of_first
        peers = self.replicas[replica - 1]
        if of_first in peers:
            return peers[of_first]
        hosts = {_host(first): _host(peer) for first, peer in reversed(list(peers.items()))}
        return hosts.get(of_first, of_first)

    def all_devices(self, of_first: str) -> tuple[str, ...]:
        """A device of the first replica and its peers in all replicas, running or not; each once."""
        peers = (self.device(of_first, replica) for replica in range(1 + len(self.replicas)))
        return tuple(dict.fromkeys(peers))

    @property
    def placement_everywhere(self) -> dict[str, str]:
        """Device of every op of every replica that runs; names of the others' ops begin with `replica_1/`."""
        everywhere = dict(self.placement)
        for replica in range(1, self.num_replicas):
            devices = {first: self.device(first, replica) for first in set(self.placement.values())}
            prefix = replica_prefix(replica)
            everywhere |= {f"{prefix}{name}": devices[device] for name, device in self.placement.items()}
        return everywhere


def replica_prefix(replica: int) -> str:
    """Prefix of the names of a replica's ops; empty for the first replica."""
    return f"replica_{replica}/" if replica else ""


def _host(device: str) -> str:
    return DeviceName.parse(device).host.canonical
