"""Do an engine's log-probabilities come at the sampling temperature?

The trainer divides its logits by the temperature. An engine that does not, or whose option for it
is silently ignored, makes every importance ratio wrong at every temperature but 1, and nothing
else would show it. So each replica asks its engine for a few tokens after the first load, and after
further ones where the first weights did not allow a verdict.

The port gives the log-probability of sampled tokens only. That is enough, for each prompt:

- Greedy, the likeliest token comes with its log-probability at temperature 1.
- At a temperature near 0 a softmax puts nearly everything on the likeliest tokens. So the best of
  a few draws must be clearly likelier than the greedy token was. Raw log-probabilities are not.

Two kinds of prompts say nothing. Where the model is nearly certain at temperature 1, both numbers
are about 0. Where the draws are about equally likely and as diverse as that says, several tokens
are tied, or the whole model is uniform: temperature shows nowhere. An engine that samples at the
temperature and reports raw numbers does not pass as such: it draws one token again and again and
calls it unlikely. Rounding may tie tokens of a real model, so one prompt alone never decides; two
bad ones do, unless more are good.

What it cannot judge: whether an engine that treats 0.02 right treats other temperatures alike, and
what an engine does under a model that is certain or uniform everywhere (the log then says so).

Axes: D draws of one prompt.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import math
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

from services.rollout.engine import Chunk, Engine, GenerationRequest
from trimaran.errors import InputError
from trimaran.host.call_waits import within
from trimaran.types import Message, Sampling

logger = logging.getLogger(__name__)

NUM_PROMPTS = 6
PROMPT_TOKENS = 4
NUM_DRAWS = 8
COLD = 0.02
"""Small beside the differences between logits, also those of an untrained model (0.1)."""
CERTAIN = -0.1
"""Log-probability of the greedy token above which there is too little room to see a difference."""
CLEAR = 0.25
"""A difference that is none of rounding. Less is enough where the greedy token is likely: rounding
moves its log-probability less, too."""
TEXT = "Which words, numbers or signs follow here? Perhaps 7, a green boat, x = 3 or the end."


class Verdict(enum.Enum):
    """What one prompt says about an engine."""

    GOOD = enum.auto()
    BAD = enum.auto()
    NOTHING = enum.auto()


@dataclass(frozen=True, slots=True)
class Draw:
    """Example: Draw(token_id=42, logprob=-0.3)"""

    token_id: int
    logprob: float


async def check_temperature(engine: Engine, max_prompt_tokens: int, timeout: float) -> bool:
    """Some weights must be loaded. Takes 54 tokens at two temperatures.

    False: these weights do not allow a verdict; ask again under others. Raises InputError when
    log-probabilities do not follow the temperature, DeadlineError after `timeout` seconds, and what
    `Engine.generate` raises.

    Example: known = await check_temperature(engine, config.rollout.max_prompt_tokens, 60.0)
    """
    prompts = _prompts(engine, min(PROMPT_TOKENS, max_prompt_tokens))
    async with within(timeout, "the check of log-probabilities"):
        # One after the other: a batch of one temperature may go another way than a mixed one, and
        # batches of training have one.
        greedy, cold = [
            await asyncio.gather(*(_draw(engine, prompt, sampling) for prompt in prompts))
            for sampling in (Sampling(0.0, 1, 1, 0), Sampling(COLD, 1, NUM_DRAWS, 0))
        ]
    count = Counter(judge(one[0], draws_D) for one, draws_D in zip(greedy, cold, strict=True))
    if count[Verdict.BAD] > 1 and count[Verdict.BAD] >= count[Verdict.GOOD]:
        raise InputError(
            f"rollout.engine: its log-probabilities at temperature {COLD:g} are not those of a"
            f" softmax at that temperature ({count[Verdict.BAD]} of {len(prompts)} prompts), so"
            " importance ratios would be wrong; choose an engine that returns them after the"
            " temperature, or fix this one"
        )
    if not count[Verdict.GOOD]:
        logger.warning(
            "whether log-probabilities follow the temperature is still unknown: under these weights"
            " %d of %d prompts cannot judge",
            count[Verdict.NOTHING],
            len(prompts),
        )
    return bool(count[Verdict.GOOD])


def judge(greedy: Draw, draws_D: Sequence[Draw]) -> Verdict:
    """What one prompt says. `greedy` at temperature 1, the draws at COLD.

    Example: judge(Draw(5, -2.1), [Draw(5, -0.01)] * 8) is Verdict.GOOD
    """
    logprobs_D = [draw.logprob for draw in draws_D]
    best = max(logprobs_D)
    if best > CLEAR or not all(map(math.isfinite, [greedy.logprob, *logprobs_D])):
        return Verdict.BAD  # no logarithm of a probability
    if greedy.logprob > CERTAIN and best > 2 * CERTAIN:
        return Verdict.NOTHING
    if best - greedy.logprob >= min(CLEAR, -greedy.logprob / 2):
        return Verdict.GOOD
    return Verdict.NOTHING if _is_tied(greedy, draws_D) else Verdict.BAD


def _is_tied(greedy: Draw, draws_D: Sequence[Draw]) -> bool:
    """The draws are about equally likely, none is less likely than the greedy token, and none came
    much more often than that says."""
    logprobs_D = [draw.logprob for draw in draws_D]
    _, often = Counter(draw.token_id for draw in draws_D).most_common(1)[0]
    return (
        max(logprobs_D) - min(logprobs_D) < 4 * CLEAR
        and max(logprobs_D) > greedy.logprob - CLEAR / 2
        and often / len(draws_D) - math.exp(min(logprobs_D)) < 0.4
    )


async def _draw(engine: Engine, prompt: tuple[int, ...], sampling: Sampling) -> list[Draw]:
    """The first token of each completion."""
    request = GenerationRequest(0, prompt, sampling, dict.fromkeys(range(sampling.num_samples), ()))
    async with aclosing(engine.generate(request)) as events:
        found = [
            Draw(event.token_ids_T[0], event.logprobs_T[0])
            async for event in events
            if isinstance(event, Chunk) and event.start == 0 and event.token_ids_T
        ]
    if len(found) != sampling.num_samples:
        raise InputError(
            f"rollout.engine: made {len(found)} completions where {sampling.num_samples} were asked"
            " for"
        )
    return found


def _prompts(engine: Engine, length: int) -> list[tuple[int, ...]]:
    """A model is seldom certain of what follows a few tokens in random order."""
    known = sorted(set(engine.tokenize((Message("user", TEXT),))))
    if not known:
        raise InputError("model.path: its chat template makes no token of a user's message")
    order = random.Random(0)
    return [tuple(order.choices(known, k=length)) for _ in range(NUM_PROMPTS)]
