"""What a delta changed, as an engine takes it: every layout of blocks, every dtype, and parts of a tensor."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.weight_sync.ends import make_values, snapshot_of
from trimaran.errors import InputError, TransferError
from weights.delta import delta_changes
from weights.delta.delta_stage import apply_verified
from weights.memory.changes import open_changes
from weights.memory.shadow import Shadow


@pytest.fixture(autouse=True)
def any_share(monkeypatch):
    monkeypatch.setattr(delta_changes, "MAX_SHARE", 100.0)


def overlaid(old, new):
    """A shadow of `new` whose memory a delta turned from `old`."""
    before = snapshot_of(old)
    base = Shadow(before.manifest)
    base.buffer.copy_(before.buffer)
    after = snapshot_of(new, reuse=before, keep_delta=True)
    assert after.delta
    shadow = Shadow(after.manifest, reuse=base)
    apply_verified(shadow, after.delta, lambda: None)
    return shadow


def opened(shadow):
    """As another process has them."""
    return list(open_changes(shadow.changes.description(), shadow.manifest.tensors))


def changed_values(seed, share):
    """Old and new values of every tensor."""
    old, generator = make_values(), torch.Generator().manual_seed(seed)
    new = {}
    for name, value in old.items():
        here = torch.rand(value.shape, generator=generator) < share
        new[name] = torch.where(here, value + 1, value)
    return old, new


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.02, 0.3, 1.0]))
def test_they_turn_whole_tensors_of_the_base_into_the_version(seed, share):
    old, new = changed_values(seed, share)
    shadow = overlaid(old, new)
    written = {name: value.clone() for name, value in old.items()}
    for changed in opened(shadow):
        written[changed.info.name].view(-1)[changed.positions.long()] = changed.values
        assert len(changed.positions) == (old[changed.info.name] != new[changed.info.name]).sum()
    assert all(torch.equal(written[name], new[name]) for name in new)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("embed", [(0, 5), (5, 37), (37, 37), (9, 9)]),
        ("proj", [(0, 2), (2, 8), (0, 8)]),
        ("norm", [(0, 5)]),
    ],
)
def test_a_rank_takes_those_of_its_part(name, parts):
    old, new = changed_values(3, 0.3)
    (changed,) = [one for one in opened(overlaid(old, new)) if one.info.name == name]
    for start, stop in parts:
        before, after = (t[name].narrow(changed.info.axis, start, stop - start) for t in (old, new))
        part = torch.empty(before.shape, dtype=before.dtype).copy_(before)
        positions, values = changed.within(start, stop)
        part.view(-1)[positions.long()] = values
        assert torch.equal(part, after)
    if name == "proj":
        with pytest.raises(InputError, match="proj: 0 to 3 is no union"):
            changed.within(0, 3)


def test_what_did_not_change_is_not_in_them():
    old = make_values()
    new = dict(old, proj=old["proj"].clone())
    new["proj"][1, 3] += 1
    (changed,) = opened(overlaid(old, new))
    assert changed.info.name == "proj"
    assert (changed.positions.tolist(), changed.values.tolist()) == ([11], [new["proj"][1, 3]])
    assert list(changed.counts) == [0, 1, 0]


def test_where_most_changed_there_are_none(monkeypatch):
    monkeypatch.setattr(delta_changes, "MAX_SHARE", 0.125)
    assert overlaid(*changed_values(0, 0.5)).changes is None
    old = make_values()
    assert overlaid(old, dict(old, steps=old["steps"] + 1)).changes is not None


def test_where_the_host_has_no_room_there_are_none(monkeypatch, caplog):
    def short(size):
        raise TransferError(f"no room for {size} bytes")

    monkeypatch.setattr(delta_changes, "HostMemory", short)
    assert overlaid(*changed_values(0, 0.1)).changes is None
    assert "loaded whole" in caplog.text


def test_positions_beyond_int32_are_not_given(monkeypatch):
    monkeypatch.setattr(delta_changes, "MAX_ELEMENTS", 47)
    old = make_values()
    assert overlaid(old, dict(old, norm=old["norm"] + 1)).changes is not None
    assert overlaid(old, dict(old, proj=old["proj"] + 1)).changes is None
