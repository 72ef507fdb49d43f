"""Ops that run functions: calls, conditionals and loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from partitioner.capture.batch_axis.flow import Flow, Items, Mixed, Mixes, Row, Uniform, joined
from partitioner.capture.batch_axis.site import Site
from partitioner.capture.batch_axis.sizes import Size
from partitioner.capture.functions.reader import CONDITIONALS, LOOPS, Inside

Run = Callable[[Inside, Sequence[Flow]], Mapping[str, Flow]]
"""Gives the flows of all tensors of a function, by name, for flows of its arguments."""
_MOST_ROUNDS = 12


def flows_of_call(site: Site, insides: Sequence[Inside], run: Run) -> Sequence[Flow]:
    """The flows of the outputs of an op that runs functions.

    Raises:
        Mixes: Values of rows decide which function runs or how often, for all rows.
    """
    if site.op.type in LOOPS:
        return _loop(site, insides[0], insides[1], run)
    if site.op.type not in CONDITIONALS:
        return _results(insides[0], run(insides[0], site.flows))
    choice, given = site.flows[0], site.flows[1:]
    if not (isinstance(choice, Row) or (isinstance(choice, Uniform) and choice.power == 0)):
        raise Mixes(choice.origin if isinstance(choice, Uniform) else None)
    branches = [_results(inside, run(inside, given)) for inside in insides]
    made = [reduce(lambda a, b: joined(a, b, site.origin), results) for results in zip(*branches, strict=True)]
    return [_of_one_row(flow, site) for flow in made] if isinstance(choice, Row) else made


def _results(inside: Inside, flows: Mapping[str, Flow]) -> list[Flow]:
    return [flows[tensor.name] for tensor in inside.results]


def _loop(site: Site, condition: Inside, body: Inside, run: Run) -> Sequence[Flow]:
    state = _settled(site, body, run, {})
    again = _results(condition, run(condition, state))[0]
    if isinstance(again, Uniform) and again.power == 0:
        return state
    if isinstance(again, Row):
        return [_of_one_row(flow, site) for flow in state]
    if not isinstance(again, Uniform):
        raise Mixes(again.origin if isinstance(again, Mixed) else None)
    return _loop_over_rows(site, condition, body, run)


def _settled(site: Site, body: Inside, run: Run, forced: Mapping[int, Flow]) -> list[Flow]:
    """The flows of the loop's variables that hold before and after every trip; some of them are given."""
    state = [forced.get(index, flow) for index, flow in enumerate(site.flows)]
    for _ in range(_MOST_ROUNDS):
        after = _results(body, run(body, state))
        new = [forced.get(i) or joined(state[i], after[i], site.origin) for i in range(len(state))]
        if new == state:
            return state
        state = new
    raise Mixes


def _of_one_row(flow: Flow, site: Site) -> Flow:
    """What a loop or a conditional makes if one row alone decides."""
    return Row() if flow in (Row(), Uniform(), Items(), Items(Uniform())) or _is_plain(flow) else Mixed(site.origin)


def _is_plain(flow: Flow) -> bool:
    return isinstance(flow, Uniform) and flow.power == 0


def _loop_over_rows(site: Site, condition: Inside, body: Inside, run: Run) -> Sequence[Flow]:
    """A loop whose trips depend on the number of rows: it has one for each, and hands nothing on from one to another.

    Its variables are counters, lists of what each row gives, and what no trip changes.
    """
    counters = {
        index for index, (start, result) in enumerate(zip(site.flows, body.results, strict=True))
        if isinstance(start, Uniform) and start.is_zero and _is_counted(result, body.arguments[index])
    }  # fmt: skip
    number = Uniform(None, None, site.origin, is_row_number=True)
    state = _settled(site, body, run, dict.fromkeys(counters, number))
    limits = run(condition, state)
    if not _ends_with_rows(condition.results[0], {condition.arguments[i].name for i in counters}, limits):
        raise Mixes
    made: list[Flow] = []
    for index, flow in enumerate(state):
        is_fixed = origin_of(body.results[index]) is body.arguments[index]
        if index in counters:
            made.append(replace(number, is_row_number=False))
        elif is_fixed or (isinstance(flow, Items) and flow.item in (None, Row())):
            made.append(flow)
        else:
            made.append(Items(Mixed(site.origin)) if isinstance(flow, Items) else Mixed(site.origin))
    return made


def origin_of(tensor: Any) -> Any:
    """The tensor that this one is a copy of."""
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def _is_counted(result: Any, argument: Any) -> bool:
    """Whether a loop variable grows by one in each trip."""
    op = origin_of(result).op
    if op.type not in ("Add", "AddV2"):
        return False
    sides = [origin_of(tensor) for tensor in op.inputs]
    others = [side for side in sides if side is not argument]
    return len(others) == 1 and others[0].op.type == "Const" and _is_one(others[0].op)


def _is_one(constant: Any) -> bool:
    value = constant.get_attr("value")
    return not value.tensor_shape.dim and 1 in (*value.int_val, *value.int64_val)


def _ends_with_rows(result: Any, counters: set[str], flows: Mapping[str, Flow]) -> bool:
    """Whether a loop's condition is that its counters are below the number of rows, and nothing else."""
    result = origin_of(result)
    if result.op.type == "LogicalAnd":
        return all(_ends_with_rows(side, counters, flows) for side in result.op.inputs)
    if result.op.type != "Less" or origin_of(result.op.inputs[0]).name not in counters:
        return False
    limit = flows[result.op.inputs[1].name]
    return isinstance(limit, Uniform) and limit.numbers is not None and limit.numbers.item() == Size(1, 1)
