"""verl's multi-turn keys and its files of tools, as verl 0.9.1 reads them (tool_agent_loop.py, tool_registry.py)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from commands.importing.files import read_tree
from commands.importing.rows import KeyOutcome, Theirs, becomes, deny, nothing
from commands.importing.verl_conversions import ROLLOUT
from trimaran.errors import InputError

TURNS = f"{ROLLOUT}.multi_turn"
TOOLS = f"{TURNS}.tool_config_path"
LOOP = f"{ROLLOUT}.agent.default_agent_loop"
OWN_LOOP = (
    "a loop of yours becomes a class with reset(row) and step(message), or a program that asks an endpoint: leave"
    " it out, and set environment in the run (docs/agents.md)"
)


def enable(value: Any, theirs: Theirs) -> KeyOutcome:
    """The section `environment`, with all that the other keys say."""
    if not theirs.is_on(f"{TURNS}.enable") and theirs[LOOP] != "tool_agent":
        return nothing("answers have one turn")
    if not theirs[TOOLS]:
        return deny(
            f"there are no tools: give {TOOLS}; or leave it out, and set environment in the run (docs/agents.md)"
        )
    tools = dict(_tools(Path(theirs[TOOLS])))
    options = {target.rpartition(":")[2]: arguments for target, arguments in tools.items()}
    if len(options) < len(tools):
        raise InputError(f"{theirs[TOOLS]}: has two classes of one name; derive a class for each")
    settings: dict[str, Any] = {
        "environment.tools": list(tools),
        "environment.options": options,
        "environment.max_turns": _max_turns(theirs),
        "environment.max_tokens": int(theirs["data.max_response_length"]),
        "environment.max_message_chars": int(theirs[f"{TURNS}.max_tool_response_length"]),
        "environment.weight": 0.0,
    }
    text = (
        "the reward is that of the function alone, as there: set environment.weight to count what tools reward. All"
        " calls of a message are answered, there the first one; a long answer is cut at its end, there in its middle."
        f" They are code that a run names: start the run with {' '.join(f'--allow {tool}' for tool in tools)}"
    )
    return becomes(settings, text)


def _max_turns(theirs: Theirs) -> int:
    """Theirs have no bound where none is given: here a turn for each token is none either."""
    assistants, users = (theirs[f"{TURNS}.max_{who}_turns"] for who in ("assistant", "user"))
    bounds = [int(assistants)] if assistants else []
    bounds += [int(users) + 1] if users else []  # the policy speaks before and after each of them
    return min(bounds, default=int(theirs["data.max_response_length"]))


def _tools(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each class of a file of tools, as `environment.tools` names it, with its keyword arguments. Raises InputError."""
    tools = (read_tree(file) or {}).get("tools")
    if not isinstance(tools, list) or not tools:
        raise InputError(f"{file}: has no list `tools`; give a file of tools as verl reads it")
    for number, tool in enumerate(cast(list[dict[str, Any]], tools), 1):
        module, _, name = str(tool.get("class_name") or "").rpartition(".")
        config = tool.get("config") or {}
        if not module:
            raise InputError(f"{file}: tool {number}: needs class_name: module.Class")
        if (kind := config.get("type", "native")) != "native":
            raise InputError(
                f"{file}: tool {number}: type {kind} is no class; name its server in environment.mcp of the run,"
                " and leave it out"
            )
        yield f"{module}:{name}", {"config": config, "tool_schema": tool.get("tool_schema")}
