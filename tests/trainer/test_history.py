from __future__ import annotations

from pathlib import Path

import pytest

from services.trainer.history import FILE, VersionHistory
from trimaran.errors import InputError
from trimaran.types import PolicyVersion, VersionId

FIRST = VersionId(0, 1)


def policy(version: VersionId, root: str) -> PolicyVersion:
    return PolicyVersion("run", version, root)


def test_a_restarted_trainer_knows_what_the_runs_trainers_made(tmp_path: Path) -> None:
    history = VersionHistory(tmp_path)
    history.add(policy(FIRST, "a"))
    history.add(policy(VersionId(1, 1), "b"))
    again = VersionHistory(tmp_path)
    assert again.roots(FIRST) == {"a"}
    assert again.roots(VersionId(1, 1)) == {"b"}
    assert again.roots(VersionId(0, 2)) == frozenset()


def test_adding_is_idempotent_also_over_a_restart(tmp_path: Path) -> None:
    for _ in range(2):
        history = VersionHistory(tmp_path)
        for _ in range(2):
            history.add(policy(FIRST, "a"))
    assert len((tmp_path / FILE).read_text().splitlines()) == 1


def test_a_replay_that_diverges_leaves_both_roots(tmp_path: Path) -> None:
    VersionHistory(tmp_path).add(policy(FIRST, "a"))
    VersionHistory(tmp_path).add(policy(FIRST, "b"))
    assert VersionHistory(tmp_path).roots(FIRST) == {"a", "b"}


@pytest.mark.parametrize("num_bytes", range(1, 40, 7))
def test_a_line_that_a_crash_cut_off_is_dropped_and_written_again(
    tmp_path: Path, num_bytes: int
) -> None:
    history = VersionHistory(tmp_path)
    history.add(policy(FIRST, "a"))
    history.add(policy(VersionId(0, 2), "b"))
    file = tmp_path / FILE
    whole = file.read_bytes()
    file.write_bytes(whole[:-num_bytes])
    again = VersionHistory(tmp_path)
    assert again.roots(VersionId(0, 2)) == frozenset()
    again.add(policy(VersionId(0, 2), "b"))
    assert file.read_bytes() == whole


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"lineage": 0, "step": 0, "root": "a"}\n{"lineage"}\n')
    with pytest.raises(InputError, match=rf"{FILE}:2: not a version's record"):
        VersionHistory(tmp_path)
