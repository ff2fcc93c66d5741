"""Packed numbers are the sequence that was packed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran.wire import messages as wire
from trimaran.wire.packed import Logprobs, TokenIds

token_ids = st.lists(st.integers(0, 2**31 - 1), max_size=20)
floats = st.lists(st.floats(width=32, allow_nan=False), max_size=20)


@given(token_ids, st.slices(20))
def test_packed_token_ids_are_the_sequence_that_was_packed(values, part):
    packed = TokenIds(wire.encode_token_ids(values))
    assert packed == tuple(values) == tuple(packed)
    assert tuple(values) == packed
    assert packed[part] == tuple(values[part])
    assert len(packed) == len(values)
    assert [packed[i] for i in range(len(values))] == values
    assert hash(packed) == hash(tuple(values))
    assert wire.encode_token_ids(packed) == wire.encode_token_ids(values)


@given(floats)
def test_packed_log_probabilities_are_the_sequence_that_was_packed(values):
    packed = Logprobs(wire.encode_logprobs(values))
    assert packed == values
    assert wire.encode_logprobs(packed) == wire.encode_logprobs(tuple(packed))


def test_others_are_not_equal_and_half_a_number_is_refused():
    packed = TokenIds(wire.encode_token_ids([1, 2]))
    assert packed != (1, 3)
    assert packed != (1, 2, 3)
    assert packed != b"\x01\x02" * 2
    with pytest.raises(ValueError, match="6 bytes of TokenIds"):
        TokenIds(b"123456")


@given(floats, st.sampled_from([float("inf"), float("-inf"), float("nan")]), floats)
def test_the_first_number_that_is_not_finite_is_found(before, bad, after):
    finite = [x for x in before if abs(x) != float("inf")]
    assert wire.find_not_finite(wire.encode_logprobs(finite)) is None
    assert wire.find_not_finite(wire.encode_logprobs([*finite, bad, *after])) == len(finite)
