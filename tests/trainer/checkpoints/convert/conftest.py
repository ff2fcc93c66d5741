"""`trimaran convert`, in this process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from commands.cli.main import main

Run = Callable[..., tuple[int, str]]
"""Exit code, and all that was written."""


@pytest.fixture
def convert(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*words: object) -> tuple[int, str]:
        code = main(["convert", *map(str, words)])
        streams = capsys.readouterr()
        return code, streams.out + streams.err

    return run
