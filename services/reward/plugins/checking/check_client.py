"""Asks a reward plugin, as the checks need it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from services.reward.outcome import Fault
from services.reward.plugins.calling.protocols import max_bytes, read_scores
from services.reward.plugins.contract import (
    CONTRACT,
    Info,
    NotScored,
    PluginSample,
    ScoreAnswer,
    Scored,
)
from trimaran.plugins.checking import SAME_TOKEN, Asker, Failed, PluginAccess, PluginReply, new_key
from trimaran.plugins.messages import PluginMessage

TOLERANCE = 1e-6
"""Relative and absolute: arithmetic in another order is no other score."""
TEXTS = (
    "7",
    "8",
    "The sum of 3 and 4 is 7.",
    "It is 12, I believe.",
    "3 + 4 = 7\n#### 7",
    "\\boxed{7}",
    "So the result is \\boxed{9}.",
    "<think>3 + 4 makes 7</think><answer>\\boxed{7}</answer>",
    "Answer: 7",
    "I do not know; " + "let me think about it once more. " * 20,
)
"""Right and wrong, short and long, in the forms that rules look for: most rules score some differently."""


class ScoreReply(PluginReply):
    def results(self, num_samples: int) -> list[Scored | NotScored]:
        results = self.read(ScoreAnswer).results
        if len(results) != num_samples:
            raise Failed(f"{len(results)} results for {num_samples} samples; answer one a sample")
        if len(self.body) > (most := max_bytes(num_samples)):
            raise Failed(f"the answer has {len(self.body):,} bytes; a run reads {most:,} of it")
        for index, outcome in enumerate(read_scores(self.body, num_samples)):
            if isinstance(outcome, Fault) and isinstance(results[index], Scored):
                raise Failed(f"sample {index}: {outcome.reason}, so a run would not take it")
        return results


class ScoreAsker(Asker):
    """One reward plugin. `info` is what it said of itself, once it was asked."""

    def __init__(self, session: aiohttp.ClientSession, access: PluginAccess) -> None:
        super().__init__(session, access)
        self.info = Info(contract=CONTRACT, name="unknown")
        self.alone: list[float | None] = []
        """What each of the kit's samples got by itself."""

    def few(self, count: int) -> tuple[PluginSample, ...]:
        """The kit's first samples, no more than the plugin takes at a time."""
        return SAMPLES[: min(count, self.info.max_samples)]

    async def post(
        self,
        samples: Sequence[PluginSample],
        /,
        key: str | None = None,
        token: str | None = SAME_TOKEN,
        **others: Any,
    ) -> ScoreReply:
        body = request_body(samples, key, **others)
        reply = await self.ask("POST", "/v1/score", body, token)
        return ScoreReply(reply.status, reply.body)

    async def score(
        self, samples: Sequence[PluginSample], key: str | None = None
    ) -> list[Scored | NotScored]:
        return (await self.post(samples, key)).results(len(samples))


def request_body(
    samples: Sequence[PluginSample], /, key: str | None = None, **others: Any
) -> bytes:
    """A ScoreRequest; `others` replace its fields, or leave one out where they are None."""
    fields: Mapping[str, Any] = {
        "contract": CONTRACT,
        "idempotency_key": key or new_key(),
        "samples": [sample.model_dump(exclude_defaults=True) for sample in samples],
        **others,
    }
    return json.dumps({name: value for name, value in fields.items() if value is not None}).encode()


def sample(text: str, answer: str = "7", index: int = 0) -> PluginSample:
    question = PluginMessage(role="user", content="What is 3 + 4?")
    return PluginSample(
        messages=[question],
        text=text,
        answer=answer,
        prompt_id=f"check-{index}",
        num_tokens=len(text.split()),
    )


SAMPLES = tuple(sample(text, index=index) for index, text in enumerate(TEXTS))


def marks_of(results: Sequence[Scored | NotScored]) -> list[float | None]:
    """What is compared: the scores; None where there is none."""
    return [result.score if isinstance(result, Scored) else None for result in results]


def first_difference(first: Sequence[float | None], second: Sequence[float | None]) -> str | None:
    for index, (one, other) in enumerate(zip(first, second, strict=True)):
        same = one == other
        if one is not None and other is not None:
            same = math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
        if not same:
            return f"sample {index} gets {other} rather than {one}"
    return None
