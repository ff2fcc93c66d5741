"""What comes of a batch whose first try failed: whose fault was it?

One failure may be the process's bad luck, so the batch is judged once more, alone in a fresh
process. An answer that fails there too is *indigestible*. A batch of several answers is then taken
apart: each is judged alone, and those that fail alone are to blame.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.reward.outcome import Fault, Indigestible, Outcome
from services.reward.terms import FunctionSpec
from services.reward.workers.process import WorkerProcess
from trimaran.rewards import Sample


async def judge_again(
    process: WorkerProcess, spec: FunctionSpec, samples: Sequence[Sample], splittable: bool
) -> tuple[Outcome, ...]:
    """One outcome a sample, in order. `splittable`: samples may be judged apart from each other.

    Raises WorkerError.
    """
    judged = await process.judge(spec, [samples], fresh=True)
    if not judged.failure:
        return judged.outcomes[0]
    if len(samples) == 1:
        return (Indigestible(judged.failure),)
    outcomes: list[Outcome] = []
    for sample in samples:
        alone = await process.judge(spec, [(sample,)], fresh=True)
        outcomes += [Indigestible(alone.failure)] if alone.failure else alone.outcomes[0]
    if splittable:
        return tuple(outcomes)
    return await _judge_without_culprits(process, spec, samples, outcomes)


async def _judge_without_culprits(
    process: WorkerProcess,
    spec: FunctionSpec,
    samples: Sequence[Sample],
    alone: Sequence[Outcome],
) -> tuple[Outcome, ...]:
    """For a function that judges a group as a whole: the answers that did not fail alone are judged
    as the group that is left."""
    to_blame = [isinstance(outcome, Indigestible) for outcome in alone]
    others = [sample for sample, is_bad in zip(samples, to_blame, strict=True) if not is_bad]
    judged = await process.judge(spec, [others], fresh=True) if others else None
    if judged is None or judged.failure or len(others) == len(samples):
        reason = judged.failure if judged else "it fails on each answer alone as well"
        text = f"{spec.target} failed on a group, and on no answer alone: {reason}"
        return (Fault(text),) * len(samples)
    left = iter(judged.outcomes[0])
    return tuple(
        outcome if is_bad else next(left) for outcome, is_bad in zip(alone, to_blame, strict=True)
    )
