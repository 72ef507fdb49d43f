"""Which stages hand tensors on: what devices of other hosts read goes from host to host, to each of them once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from partitioner.ir.devices import DeviceName
from partitioner.ir.stage_programs import StageProgram


def relays(repeated: Iterable[StageProgram]) -> Mapping[tuple[str, str], str]:
    """For a tensor and a device that reads it: the device it comes from, where that is not the one that made it.

    The first device of a host that reads a tensor gets it from the one of the host before, as layers get gradients from
    each other, and hands it on to the others of its host. So a tensor leaves no host more than once.

    Args:
        repeated: The programs of a microbatch, in an order in which they can run.
    """
    programs = list(repeated)
    host = {device: DeviceName.parse(device).host for device in {program.device for program in programs}}
    if len(set(host.values())) == 1:
        return {}
    made_on = {name: program.device for program in programs for name in program.outputs}
    holders = {name: {host[device]: device} for name, device in made_on.items()}
    found: dict[tuple[str, str], str] = {}
    for program in programs:
        for name in filter(made_on.__contains__, program.inputs):
            of_host = holders[name]
            nearest = of_host.get(host[program.device], [*of_host.values()][-1])
            of_host.setdefault(host[program.device], program.device)
            if nearest not in (made_on[name], program.device):
                found[name, program.device] = nearest
    return found
