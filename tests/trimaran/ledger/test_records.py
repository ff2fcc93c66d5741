"""What is written to the ledger is read back as it was."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran.ledger.records import (
    TYPES,
    Compacted,
    Filtered,
    Issued,
    LedgerError,
    Planned,
    Record,
    Reissue,
    Scored,
    Timed,
    canonical,
    decode,
    encode,
)

finite = st.floats(allow_nan=False, allow_infinity=False)
finite_times = st.builds(Timed, st.integers(), finite)
values = st.lists(st.none() | finite).map(tuple)
terms = st.lists(st.tuples(st.text(), values)).map(tuple)
pairs = st.lists(st.tuples(st.text(), st.text())).map(tuple)
scored = st.builds(Scored, rewards=values, terms=terms, makers=pairs)
filtered = st.builds(Filtered, rewards=values, terms=terms)
snapshots = st.builds(Compacted, state=st.dictionaries(st.text(), st.integers()))
planned = st.builds(Planned, settings=st.dictionaries(st.text(), st.integers()))
others = [t for t in TYPES.values() if t not in (Timed, Scored, Filtered, Compacted, Planned)]
records = st.one_of(
    [finite_times, scored, filtered, snapshots, planned, *map(st.from_type, others)]
)


@given(record=records)
def test_every_record_comes_back_from_the_store(record: Record) -> None:
    tree = encode(record)
    stored = json.loads(json.dumps(tree))
    assert decode(stored) == record
    assert canonical(stored) == canonical(tree), "and so its hash"


def test_a_kind_is_the_types_name() -> None:
    assert encode(Issued(17, 2, "p", Reissue("it died", "rollout-0"))) == {
        "kind": "issued",
        "group": 17,
        "attempt": 2,
        "prompt": "p",
        "reissue": {"cause": "it died", "replica": "rollout-0"},
    }


@pytest.mark.parametrize(
    "tree",
    [
        {"kind": "vanished", "group": 17},
        {"group": 17},
        {"kind": "generated", "group": 17, "attempt": 1},
        {"kind": "generated", "group": 17, "attempt": 1, "digest": "d", "colour": "red"},
    ],
)
def test_what_is_no_record_is_named(tree: dict[str, object]) -> None:
    with pytest.raises(LedgerError, match="is no record of this version"):
        decode(tree)
