"""What clients are shown of a log."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.manager.run_data.log_files import LogFile


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
