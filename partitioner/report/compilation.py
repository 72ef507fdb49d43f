"""What XLA compiles of a plan, in a sentence."""

from __future__ import annotations

from collections import Counter

from partitioner.ir.plan import PlanDocument
from partitioner.ir.units import plural
from partitioner.spelling import listed


def compilation_sentence(plan: PlanDocument) -> str:
    """Which stages XLA compiles, and why not all of them; empty where it compiles none.

    `XLA compiles stages 0, 1, but for 2 ops of stage 1 (XLA has no GPU kernel for StringToHashBucketFast)`
    """
    stages = plan.stages_of(0)
    compiled = [stage for stage in stages if stage.compiled]
    if not compiled:
        return ""
    some = f"stages {listed([str(stage.index) for stage in compiled])}"
    which = "every stage" if len(compiled) == len(stages) else some
    rest = [stage for stage in compiled if stage.uncompiled]
    if not rest:
        return f"XLA compiles {which}"
    reasons = sum((Counter(stage.uncompiled) for stage in rest), Counter[str]())
    why = listed([reason for reason, _ in reasons.most_common()])
    where = listed([str(stage.index) for stage in rest])
    count = plural(sum(reasons.values()), "op")
    return f"XLA compiles {which}, but for {count} of {'stages' if len(rest) > 1 else 'stage'} {where} ({why})"
