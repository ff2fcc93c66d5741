"""From messages to samples, and from outcomes to results."""

from __future__ import annotations

import json
import math
from typing import Annotated

from pydantic import BaseModel, Field, JsonValue

from services.reward.outcome import Fault, Indigestible, NotApplicable, Outcome, Value
from services.reward.plugins.contract import (
    MAX_SAMPLES,
    Info,
    NotScored,
    PluginSample,
    Scored,
)
from trimaran.plugins.forms import Lenient
from trimaran.plugins.limits import Refused
from trimaran.plugins.messages import messages_of
from trimaran.rewards import Sample
from trimaran.types import Message

MAX_REASON = 500
"""Characters of a reason."""


class RewardQuery(Lenient):
    """What OpenRLHF's SingleTurnAgentExecutor sends; older clients send `query` alone.

    openrlhf/utils/agent.py and openrlhf/cli/serve_rm.py of github.com/OpenRLHF/OpenRLHF.
    """

    query: Annotated[list[str], Field(min_length=1, json_schema_extra={"maxItems": MAX_SAMPLES})]
    """Prompt and completion as one text each, special tokens included."""
    prompts: list[str] | None = None
    labels: list[JsonValue] | None = None


class Rewards(BaseModel):
    rewards: list[float]


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


def query_samples(request: RewardQuery) -> list[Sample]:
    num_queries = len(request.query)
    prompts = request.prompts or [""] * num_queries
    labels: list[JsonValue] = request.labels or [None] * num_queries
    if not len(prompts) == len(labels) == num_queries:
        raise Refused(
            422,
            f"{num_queries} query, {len(prompts)} prompts, {len(labels)} labels: lengths differ",
        )
    return [
        Sample(
            text=_completion(query, prompt),
            answer=_label_text(label),
            messages=(Message("user", prompt),) if prompt else (),
        )
        for query, prompt, label in zip(request.query, prompts, labels, strict=True)
    ]


def _completion(query: str, prompt: str) -> str:
    """What follows the prompt; all of it where the prompt is not in it as it stands."""
    _, found, rest = query.partition(prompt) if prompt else ("", "", "")
    return rest if found else query


def _label_text(label: JsonValue) -> str:
    if label is None or isinstance(label, str):
        return label or ""
    return json.dumps(label)
