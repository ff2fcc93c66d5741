"""Breakages of the real code, planted into the processes of a driven run: the oracle must find each."""

from __future__ import annotations


def install(name: str, arguments: list[str]) -> None:
    pass
