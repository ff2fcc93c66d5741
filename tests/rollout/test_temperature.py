"""Does the check of an engine's log-probabilities distinguish right ones from wrong ones?"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from typing import Any

import pytest
import torch

from services.rollout.engine import Chunk, Ended
from services.rollout.temperature import Draw, Verdict, check_temperature, judge
from trimaran.errors import DeadlineError, InputError
from trimaran.types import VersionId

VERSION = VersionId(0, 0)
NUM_TOKENS = 300


class ToyEngine:
    """Logits are drawn again for each prompt: `spread` is their standard deviation.

    `reported(logits_V, temperature)` gives log-probabilities, `sampled` those that are drawn from.
    """

    def __init__(self, spread: float, reported: Any, sampled: Any = None):
        self.spread, self.reported = spread, reported
        self.sampled = sampled or right
        self.ties = 0

    def tokenize(self, messages):
        return tuple(messages[0].text.encode())

    def logits(self, prompt):
        generator = torch.Generator().manual_seed(random.Random(str(prompt)).getrandbits(32))
        logits_V = self.spread * torch.randn(NUM_TOKENS, generator=generator)
        logits_V[: self.ties] = logits_V.max()
        return logits_V.double()

    async def generate(self, request):
        temperature = request.sampling.temperature
        logits_V = self.logits(request.prompt_token_ids)
        token, reported_V = int(logits_V.argmax()), logits_V.log_softmax(-1)
        generator = torch.Generator().manual_seed(1)
        for index in request.starts:
            if temperature:
                reported_V = self.reported(logits_V, temperature)
                probabilities_V = self.sampled(logits_V, temperature).exp()
                token = int(torch.multinomial(probabilities_V, 1, generator=generator))
            yield Chunk(index, 0, VERSION, (token,), (float(reported_V[token]),))
            yield Ended(index, "length")


def right(logits_V, temperature):
    return (logits_V / temperature).log_softmax(-1)


def raw(logits_V, temperature):
    return logits_V.log_softmax(-1)


def upside_down(logits_V, temperature):
    return (logits_V * temperature).log_softmax(-1)


def processed_logits(logits_V, temperature):
    return logits_V / temperature


def check(engine: Any) -> bool:
    return asyncio.run(check_temperature(engine, 16, TIMEOUT))


TIMEOUT = 60.0
SPREADS = (0.05, 0.16, 1.0, 3.0)
"""Of an untrained model, and up to that of a trained one."""


@pytest.mark.parametrize("spread", SPREADS)
def test_right_log_probabilities_pass(spread, caplog):
    assert check(ToyEngine(spread, right))
    assert not caplog.records


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("reported", [raw, upside_down, processed_logits])
def test_wrong_log_probabilities_are_refused(spread, reported):
    with pytest.raises(InputError, match="rollout.engine: its log-probabilities"):
        check(ToyEngine(spread, reported))


@pytest.mark.parametrize("spread", SPREADS[1:])
def test_an_engine_that_knows_no_temperature_is_refused(spread):
    with pytest.raises(InputError, match="rollout.engine: its log-probabilities"):
        check(ToyEngine(spread, raw, sampled=raw))


@pytest.mark.parametrize("ties", [2, 3])
def test_ties_pass(ties):
    engine = ToyEngine(2.0, right)
    engine.ties = ties - 1
    check(engine)


def test_raw_log_probabilities_of_tied_tokens_are_refused():
    draws = [Draw(token, -1.0) for token in (4, 4, 4, 4, 4, 4, 4, 9)]
    assert judge(Draw(4, -1.0), draws) is Verdict.BAD
    assert judge(Draw(4, -1.0), [Draw(4, -math.log(2)), *draws[1:]]) is Verdict.GOOD


@pytest.mark.parametrize("spread", [0.0, 40.0])
def test_under_uniform_and_under_certain_models_the_check_says_that_it_cannot_judge(spread, caplog):
    with caplog.at_level(logging.WARNING):
        assert not check(ToyEngine(spread, right))
        assert not check(ToyEngine(spread, raw))
    assert len(caplog.records) == 2
    assert all("6 of 6 prompts cannot judge" in record.message for record in caplog.records)


def test_one_number_for_every_token_is_refused():
    """What a stand-in might do: the same token every time, called unlikely."""
    assert judge(Draw(7, -1.0), [Draw(7, -1.0)] * 8) is Verdict.BAD
    assert judge(Draw(7, 0.0), [Draw(7, 0.0)] * 8) is Verdict.NOTHING
    assert judge(Draw(7, math.nan), [Draw(7, math.nan)] * 8) is Verdict.BAD


def test_an_engine_that_never_answers_ends_the_check():
    engine: Any = ToyEngine(1.0, right)

    async def hang(request):
        await asyncio.Event().wait()
        yield

    engine.generate = hang
    with pytest.raises(DeadlineError, match="check of log-probabilities"):
        asyncio.run(check_temperature(engine, 16, timeout=0.05))
