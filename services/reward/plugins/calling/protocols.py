"""What plugins of our own contract are sent, and what their answers mean.

An answer is foreign text: it is checked down to each number, unknown fields are not even built,
and what is wrong with one completion is the fault of that one only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Literal, Protocol

from pydantic import ValidationError

from services.reward.outcome import Fault, Indigestible, Outcome, Value
from services.reward.plugins.contract import CONTRACT, NotScored, Scored
from trimaran.plugins.forms import CallError, Lenient, encode, first_fault, parse
from trimaran.plugins.messages import message_form
from trimaran.rewards import Sample

MAX_ANSWER_BYTES = 1 << 20
MAX_ANSWER_BYTES_PER_SAMPLE = 16 << 10
MAX_INFO_BYTES = 64 << 10
MAX_PARTS = 32
"""Further numbers of one result; each becomes a metric."""


class Send(Protocol):
    def __call__(self, body: bytes, max_bytes: int) -> Awaitable[bytes]:
        """POST to the plugin; its answer. Raises CallError."""
        ...


class Ask(Protocol):
    def __call__(
        self, send: Send, samples: Sequence[Sample], options: Mapping[str, Any]
    ) -> Awaitable[Sequence[Outcome]]:
        """Score one batch, in order. Raises CallError."""
        ...


async def ask_trimaran(
    send: Send, samples: Sequence[Sample], options: Mapping[str, Any]
) -> Sequence[Outcome]:
    return read_scores(
        await send(score_request(samples, options), max_bytes(len(samples))), len(samples)
    )


def max_bytes(count: int) -> int:
    """The limit of an answer to `count` samples."""
    return MAX_ANSWER_BYTES + MAX_ANSWER_BYTES_PER_SAMPLE * count


def score_request(samples: Sequence[Sample], options: Mapping[str, Any]) -> bytes:
    """A ScoreRequest. Its key is a digest of the rest: asking again is the same request."""
    content = encode({"samples": [_plugin_sample(s) for s in samples], "options": options})
    key = hashlib.sha256(content).hexdigest()
    head = encode({"contract": CONTRACT, "idempotency_key": key})
    return head[:-1] + b"," + content[1:]


def _plugin_sample(sample: Sample) -> dict[str, Any]:
    conversation = sample.conversation
    return {
        "messages": list(map(message_form, sample.messages)),
        "text": sample.text,
        "answer": sample.answer,
        "task": sample.task,
        "prompt_id": sample.prompt_id,
        "extras": dict(sample.extras),
        "num_tokens": len(sample.token_ids),
        "finish_reason": sample.finish_reason,
        **({"conversation": list(map(message_form, conversation))} if conversation else {}),
    }


class _Answer(Lenient):
    """A ScoreAnswer whose results are looked at one by one."""

    contract: Literal["trimaran.reward/1"]
    results: list[Any]


def read_scores(answer: bytes, count: int) -> list[Outcome]:
    """One outcome a sample. Raises CallError for what is no ScoreAnswer of `count` results."""
    results = parse(_Answer, answer).results
    check_length("results", results, count)
    return [_read_result(result) for result in results]


def _read_result(result: Any) -> Outcome:
    if not isinstance(result, dict):
        return Fault(f"the result is not an object with score or faulted: {result!r}")
    score, faulted = result.get("score"), result.get("faulted")
    if score is not None and faulted is not None:
        return Fault("the result has both score and faulted; one of them is right")
    try:
        if faulted is not None:
            reason = NotScored.model_validate(result, strict=True).faulted
            return Fault(f"it reports a fault: {reason}")
        scored = Scored.model_validate(result, strict=True)
    except ValidationError as error:
        return Fault(f"the result is not as the contract says: {first_fault(error)}")
    if len(scored.parts) > MAX_PARTS:
        return Fault(f"the result has {len(scored.parts)} parts; at most {MAX_PARTS} are taken")
    if scored.indigestible:
        return Indigestible(scored.indigestible, scored.score)
    return Value(scored.score, scored.parts)


def check_length(name: str, results: Sequence[Any], count: int) -> None:
    if len(results) != count:
        raise CallError(f"the answer has {len(results)} {name} for {count} completions")
