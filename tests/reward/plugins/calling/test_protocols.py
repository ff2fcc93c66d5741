"""What answers mean, for any bytes."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.reward.outcome import Fault, Value
from services.reward.plugins.calling.breaker import (
    FAILURES,
    REST_SECONDS,
    Breaker,
    CircuitOpenError,
)
from services.reward.plugins.calling.protocols import MAX_PARTS, read_scores, score_request
from services.reward.plugins.contract import Info, ScoreRequest
from trimaran.plugins.forms import CallError, parse
from trimaran.rewards import Sample
from trimaran.types import Message

NUMBERS = st.floats() | st.integers() | st.booleans()
JSON = st.recursive(
    st.none() | NUMBERS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=12,
)
RESULTS = st.lists(
    st.fixed_dictionaries(
        {}, optional={"score": JSON, "faulted": JSON, "parts": JSON, "indigestible": JSON}
    )
    | JSON,
    max_size=4,
)
TEXTS = st.text(st.characters(codec=None, categories=None), max_size=8)
"""With lone surrogates."""


@given(body=st.binary(max_size=200))
def test_other_bytes_are_refused(body: bytes) -> None:
    for read in (lambda: read_scores(body, 1), lambda: parse(Info, body)):
        with pytest.raises(CallError):
            read()


@given(results=RESULTS)
def test_any_results_are_read(results: list[Any]) -> None:
    body = json.dumps({"contract": "trimaran.reward/1", "results": results}).encode()
    outcomes = read_scores(body, len(results))
    assert len(outcomes) == len(results)
    for outcome in outcomes:
        assert isinstance(outcome, Value | Fault)
        if isinstance(outcome, Value):
            assert type(outcome.value) is float
            assert all(map(math.isfinite, (outcome.value, *outcome.parts.values())))
        else:
            assert outcome.reason


@given(text=TEXTS, answer=TEXTS, extras=st.dictionaries(TEXTS, TEXTS, max_size=3))
def test_any_sample_makes_a_valid_request(text: str, answer: str, extras: dict[str, str]) -> None:
    sample = Sample(text, answer, extras, (Message("user", text),))
    request = ScoreRequest.model_validate_json(score_request([sample], {"a": [1, text]}))
    try:
        text.encode()
    except UnicodeEncodeError:
        assert "\ufffd" in request.samples[0].text or len(request.samples[0].text) < len(text)
    else:
        assert request.samples[0].text == text


def test_parts_are_bounded() -> None:
    parts = {f"p{i}": 0 for i in range(MAX_PARTS + 1)}
    results = [{"score": 1, "parts": parts}]
    body = json.dumps({"contract": "trimaran.reward/1", "results": results}).encode()
    (outcome,) = read_scores(body, 1)
    assert isinstance(outcome, Fault) and "at most 32" in outcome.reason


def test_the_breaker_opens_rests_and_lets_one_through() -> None:
    now = 100.0
    breaker = Breaker(lambda: now)
    for _ in range(FAILURES - 1):
        breaker.failed("a")
        breaker.check()
    breaker.failed("b")
    with pytest.raises(CircuitOpenError, match=r"5 times .* for 10\.0 s; last: b"):
        breaker.check()
    now += REST_SECONDS
    breaker.check()  # the one probe
    with pytest.raises(CircuitOpenError):
        breaker.check()
    now += REST_SECONDS  # its probe was cancelled: another may go
    breaker.check()
    breaker.succeeded()
    breaker.check()
    breaker.failed("d")
    breaker.check()
