"""How commands get into the parser: each names the function that runs it, which is imported late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Add = Callable[..., Any]
"""`add_argument` of a command."""


def add_command(
    commands: Any, name: str, words: str, run: str, examples: str = "", description: str = ""
) -> Add:
    """`run`: "module:function" in this package; the function takes the options and returns the exit code."""
    command = commands.add_parser(
        name, help=words, description=description or None, epilog=examples or None
    )
    command.set_defaults(run_by=run)
    return command.add_argument


def add_group(commands: Any, name: str, words: str, examples: str) -> Any:
    """A command that consists of others, such as `trimaran weights`."""
    group = commands.add_parser(name, help=words, epilog=examples)
    return group.add_subparsers(dest="action", required=True, metavar="ACTION")


def add_overrides(add: Add, words: str = "settings that replace the file's") -> None:
    add("overrides", nargs="*", metavar="key=value", help=words)


def add_json(add: Add) -> None:
    add("--json", action="store_true", help="for machines")
