"""The shapes that pipelines may have: devices of their stages, a number of microbatches, a schedule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from partitioner.ir.plan import Strategy
from partitioner.planner.pipeline.evaluator import PipelineEvaluator, Shape
from partitioner.planner.pipeline.search_space import MANY, PREFERENCE
from partitioner.stages.schedules import ScheduleKind

_ALIKE_WITHOUT_BACKWARDS = (
    ScheduleKind.GPIPE,
    ScheduleKind.ONE_F_ONE_B,
    ScheduleKind.ZB_H1,
    ScheduleKind.ZB_H2,
    ScheduleKind.ZB_V,
)
# How many stages each device has in an interleaved schedule. The more, the less devices wait for the first microbatch;
# but each stage is compiled, and called for each microbatch: more than so many in all were never faster where tried.
_ROUNDS = (2, 4, 8)
_MOST_STAGES = 32


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """The shapes of a search.

    Attributes:
        evaluator: Has the items, the devices and the search space.
        strategy: `single`, `layer-split` (every device gets a stage) or `auto`.
        one_device: Whether microbatches on one device alone are tried.
        in_one_piece: Whether a batch in one piece is looked at elsewhere, as one graph.
    """

    evaluator: PipelineEvaluator
    strategy: Strategy
    one_device: bool
    in_one_piece: bool

    def __iter__(self) -> Iterator[Shape]:
        """Devices of stages, numbers of microbatches and schedules that go together."""
        training = self.evaluator.costed.graph.training
        for devices in self._device_sequences():
            for count in self.counts:
                for schedule in self.schedules(devices, count):
                    for rounds in self._rounds(devices, count, schedule):
                        stages = schedule.stages_on(devices, rounds=rounds, training=training)
                        if len(stages) <= len(self.evaluator.order):
                            yield Shape(stages, count, schedule)

    @property
    def counts(self) -> list[int]:
        """Numbers of microbatches; one microbatch only where the step cannot run as one graph."""
        most = self.evaluator.costed.graph.batch_size
        least = 2 if self.in_one_piece else 1
        return sorted({count for count in self.evaluator.search_space.counts if least <= count <= most})

    def schedules(self, devices: Sequence[int], count: int) -> list[ScheduleKind]:
        """Schedules that differ: on one device all give nearly the same order, with one microbatch all but zb-h1.

        In inference there are no backwards, so all that put a stage on each device are the same.
        """
        allowed = [kind for kind in PREFERENCE if kind in self.evaluator.search_space.schedules]
        if not self.evaluator.costed.graph.training:
            alike = [kind for kind in _ALIKE_WITHOUT_BACKWARDS if kind in allowed]
            return alike[:1] or allowed[:1]
        if len(devices) == 1 or count == 1:
            differ = (ScheduleKind.SEQUENTIAL, ScheduleKind.ZB_H1)[: len(devices)]
            return [kind for kind in differ if kind in allowed] or allowed[:1]
        return [kind for kind in allowed if kind is not ScheduleKind.INTERLEAVED or count % len(devices) == 0]

    def _rounds(self, devices: Sequence[int], count: int, schedule: ScheduleKind) -> list[int]:
        """Of an interleaved schedule, how many stages each device may have.

        Where there is memory for it, stages in a V fill the same time with gradients of weights, in fewer stages.
        """
        least, *more = _ROUNDS
        if schedule is not ScheduleKind.INTERLEAVED or len(devices) == 1:
            return [least]
        in_a_v = self.evaluator.costed.graph.training and ScheduleKind.ZB_V in self.evaluator.search_space.schedules
        if in_a_v and self.evaluator.can_keep_all(devices, count):
            return [least]
        return [least, *(rounds for rounds in more if rounds * len(devices) <= _MOST_STAGES)]

    def _device_sequences(self) -> list[tuple[int, ...]]:
        """Devices in the order of stages: as given, the fastest first, the largest first, as constraints ask."""
        placed = self.evaluator.costed.topology.devices
        everything = range(len(placed))
        seconds = [*map(sum, self.evaluator.costed.columns)]
        allowed = self.evaluator.coarsening.allowed
        asked = dict.fromkeys(min(allowed[item]) for item in self.evaluator.order if len(allowed[item]) < len(placed))
        orders = [
            list(everything),
            sorted(everything, key=lambda device: seconds[device]),
            sorted(everything, key=lambda device: -placed[device].memory_bytes),
            [*asked, *(device for device in everything if device not in asked)],
            sorted(everything, key=lambda device: -sum(device in places for places in allowed)),
        ]
        sizes = {
            Strategy.SINGLE: [1],
            Strategy.LAYER_SPLIT: [len(placed)],
            Strategy.AUTO: [
                size
                for size in _numbers_up_to(len(placed))
                if size >= self.evaluator.search_space.least_devices and (size > 1 or self.one_device)
            ],
        }[self.strategy]
        sequences = dict.fromkeys(tuple(order[:size]) for order in orders for size in sizes if size)
        return [devices for devices in sequences if not any(places.isdisjoint(devices) for places in allowed)]


def _numbers_up_to(count: int) -> list[int]:
    """Numbers of devices to try: all; of many devices, powers of two and some that are nearly all."""
    if count <= MANY:
        return [*range(1, count + 1)]
    return sorted({*(2**n for n in range(count.bit_length())), *(count * eighths // 8 for eighths in range(5, 9))})
