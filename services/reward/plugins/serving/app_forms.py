"""From messages to samples, and from outcomes to results."""

from __future__ import annotations

import math

from services.reward.outcome import Fault, Indigestible, NotApplicable, Outcome, Value
from services.reward.plugins.contract import Info, NotScored, PluginSample, Scored
from trimaran.plugins.messages import messages_of
from trimaran.rewards import Sample

MAX_REASON = 500
"""Characters of a reason."""


def result_of(outcome: Outcome, info: Info) -> Scored | NotScored:
    """A value that cannot be believed is a fault of the function, not of the answer."""
    least = -math.inf if info.minimum is None else info.minimum
    most = math.inf if info.maximum is None else info.maximum
    match outcome:
        case Value(value, parts) if math.isfinite(value) and least <= value <= most:
            finite = {_clean(name): part for name, part in parts.items() if math.isfinite(part)}
            return Scored(score=value, parts=finite)
        case Value(value):
            return NotScored(faulted=f"the score {value:g} is not within {least:g} and {most:g}")
        case Indigestible(reason):
            return Scored(score=info.minimum or 0.0, indigestible=_clean(reason))
        case NotApplicable():
            return NotScored(faulted="the function answered None: it does not apply here")
        case Fault(reason):
            return NotScored(faulted=_clean(reason))


def _clean(text: str) -> str:
    """Short, never empty, and without the lone surrogates that JSON cannot hold."""
    return text[:MAX_REASON].encode("utf-8", "replace").decode() or "no reason given"


def sample_of(sample: PluginSample) -> Sample:
    return Sample(
        text=sample.text,
        answer=sample.answer,
        extras=sample.extras,
        messages=messages_of(sample.messages),
        task=sample.task,
        prompt_id=sample.prompt_id,
        token_ids=(0,) * sample.num_tokens,  # the ids stay with the caller; the length is true
        finish_reason=sample.finish_reason,
        conversation=messages_of(sample.conversation),
    )
