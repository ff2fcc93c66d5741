"""The journal: what a worker wrote before it died, and nothing else, comes back."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.reward.outcome import Fault, Indigestible, NotApplicable, Outcome, Value
from services.reward.workers.journal import (
    JournalReader,
    JournalWriter,
    decode_entry,
    encode_entry,
    encode_raised,
)

NUMBERS = st.floats(allow_nan=False)
OUTCOMES = st.one_of(
    st.builds(Value, NUMBERS, st.dictionaries(st.text(max_size=5), NUMBERS, max_size=3)),
    st.just(NotApplicable()),
    st.builds(Fault, st.text(max_size=20)),
)


@pytest.fixture
def reader() -> Iterator[JournalReader]:
    reader = JournalReader()
    yield reader
    reader.close()


@given(st.lists(OUTCOMES, max_size=4))
def test_outcomes_come_back_as_they_were(outcomes: list[Outcome]) -> None:
    tree = json.loads(encode_entry(outcomes, len(outcomes)))
    assert decode_entry(tree, len(outcomes)) == tuple(outcomes)


@given(st.text(max_size=400, alphabet=st.characters()))
def test_a_reason_is_cut_and_stays_one_line(reason: str) -> None:
    line = encode_raised(reason)
    assert line.count(b"\n") == 1
    assert decode_entry(json.loads(line), 1) == reason[:300]


@pytest.mark.parametrize(
    ("outcomes", "size"),
    [([], 1), ([Value(1.0), Value(1.0)], 1), ([Indigestible("?")], 1), ([1.0], 1)],
)
def test_what_is_not_one_outcome_a_sample_is_refused(outcomes: list[Outcome], size: int) -> None:
    with pytest.raises((ValueError, TypeError), match="score"):
        encode_entry(outcomes, size)


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"\xff", b"null", b"[]", b'[["none"], ["none"]]', b'[["none", 1]]', b'["none"]'),
        *(b'[["value", 1.0]]', b'[["value", "1", {}]]', b'[["value", 1.0, {"a": "b"}]]'),
    ],
)
def test_a_line_that_no_worker_writes_is_refused(reader: JournalReader, line: bytes) -> None:
    writer = JournalWriter(reader.path)
    writer.begin(1)
    writer.write(line + b"\n")
    with pytest.raises(ValueError):
        reader.read(1, [1])


def test_a_chunk_starts_again_and_half_a_line_does_not_count(reader: JournalReader) -> None:
    writer = JournalWriter(reader.path)
    assert reader.read(1, [1]) is None
    writer.begin(1)
    writer.write(encode_entry([Value(1.0)], 1))
    writer.write(encode_raised("old"))
    writer.begin(2)
    assert reader.read(1, [1, 1]) is None
    assert reader.read(2, [1, 1]) == []
    writer.write(encode_entry([Value(0.5)], 1))
    writer.write(b'"half a li')
    assert reader.read(2, [1, 1]) == [(Value(0.5),)]
    writer.write(b'ne"\n"one too many"\n')
    with pytest.raises(ValueError, match="3 lines for 2 batches"):
        reader.read(2, [1, 1])
