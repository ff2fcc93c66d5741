"""What clients are shown of a log."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from services.manager.log_files import LONGEST_LINE, LogFile


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("at redis://me:pw@host:1/0", "at redis://me:***@host:1/0"),
        ("at redis://:pw@host", "at redis://:***@host"),
        ("a,b=redis://u:pw@h redis://u:pw@h", "a,b=redis://u:***@h redis://u:***@h"),
        ("Authorization: Bearer abc", "Authorization: Bearer ***"),
        ("password = abc, x", "password = ***, x"),
        ("see https://host/a:b", "see https://host/a:b"),
    ],
)
def test_no_line_shows_what_a_library_wrote_of_a_secret(
    tmp_path: Path, line: str, shown: str
) -> None:
    (tmp_path / "a.log").write_text(line + "\n")
    assert LogFile(tmp_path / "a.log").tail(1).lines == [shown]


def test_a_line_of_one_word_takes_no_longer_than_others(tmp_path: Path) -> None:
    """Who writes such lines, and asks for them, would hold up the manager: a search lets no other thread
    go on."""

    def seconds(letter: str) -> float:
        (tmp_path / "a.log").write_text((letter * LONGEST_LINE + "\n") * 10)
        begun = time.process_time()
        assert LogFile(tmp_path / "a.log").tail(10).lines == [letter * LONGEST_LINE] * 10
        return time.process_time() - begun

    words, others = min(seconds("a") for _ in range(3)), min(seconds("-") for _ in range(3))
    assert words < 50 * others  # it was some thousand times
