"""verl's multi-turn keys and its files of tools, as verl 0.9.1 reads them (tool_agent_loop.py, tool_registry.py)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import yaml

from commands.importing.rows import Convert, KeyOutcome, Theirs
from commands.importing.verl_conversions import ROLLOUT
from trimaran.errors import InputError

TURNS, AGENT = f"{ROLLOUT}.multi_turn", f"{ROLLOUT}.agent"
CONFIGURED, FUNCTIONS = "tool_config_path", "function_tool_path"
LOOPS = ("single_turn_agent", "tool_agent", None)
OWN_LOOP = (
    "a loop of yours becomes a class with reset(row) and step(message), or a program that asks an endpoint: leave"
    " it out, and set environment in the run (docs/agents.md)"
)
OFF = KeyOutcome("ignored", "answers have one turn")


def has_turns(theirs: Theirs) -> bool:
    """Whether answers may call tools. Rows may name the loop there, too, by a column agent_name."""
    return theirs.is_on(f"{TURNS}.enable") or theirs[f"{AGENT}.default_agent_loop"] == "tool_agent"


def enable(value: Any, theirs: Theirs) -> KeyOutcome:
    """The section `environment`, with all that the other keys say."""
    if not has_turns(theirs):
        return OFF
    tools, options = _tools(theirs)
    if not tools:
        return KeyOutcome(
            "refused",
            f"there are no tools: give {TURNS}.{CONFIGURED} or {TURNS}.{FUNCTIONS}; or leave it out, and set"
            " environment in the run (docs/agents.md)",
        )
    settings: dict[str, Any] = {
        "environment.tools": tools,
        "environment.max_turns": _max_turns(theirs),
        "environment.max_tokens": int(theirs["data.max_response_length"]),
        "environment.weight": 0.0,
        **({"environment.options": options} if options else {}),
    }
    if theirs.is_on(f"{TURNS}.use_inference_chat_template"):
        settings["environment.history"] = "template"
    text = (
        "the reward is that of the function alone, as there: set environment.weight to count what tools reward. They"
        f" are code that a run names: start the run with {' '.join(f'--allow {tool}' for tool in tools)}"
    )
    return KeyOutcome("noted", text, settings)


def _max_turns(theirs: Theirs) -> int:
    """Theirs have no bound where none is given: here a turn for each token is none either."""
    assistants, users = (theirs[f"{TURNS}.max_{who}_turns"] for who in ("assistant", "user"))
    bounds = [int(assistants)] if assistants else []
    bounds += [int(users) + 1] if users else []  # the policy speaks before and after each of them
    return min(bounds, default=int(theirs["data.max_response_length"]))


def _tools(theirs: Theirs) -> tuple[list[str], dict[str, Any]]:
    """What `environment.tools` and `environment.options` are. Raises InputError that names the file."""
    tools: list[str] = []
    options: dict[str, Any] = {}
    if file := theirs[f"{TURNS}.{CONFIGURED}"]:
        for target, arguments in configured_tools(Path(file)):
            tools.append(target)
            if (name := target.rpartition(":")[2]) in options:
                raise InputError(f"{file}: has {name} twice; derive a class for each of its tools")
            options[name] = arguments
    if file := theirs[f"{TURNS}.{FUNCTIONS}"]:
        path = Path(file).expanduser().absolute()
        tools.extend(f"{path}:{name}" for name in function_tools(path))
    return tools, options


def configured_tools(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each class of a file of tools, as `environment.tools` names it, with its keyword arguments.

    Raises InputError.
    """
    tree = _read(file)
    tools = cast(dict[str, Any], tree).get("tools") if isinstance(tree, dict) else None
    if not isinstance(tools, list) or not tools:
        raise InputError(f"{file}: has no list `tools`; give a file of tools as verl reads it")
    for number, tool in enumerate(cast(list[Any], tools), 1):
        fields = cast(dict[str, Any], tool) if isinstance(tool, dict) else {}
        module, _, name = str(fields.get("class_name") or "").rpartition(".")
        config = fields.get("config") or {}
        if not module or not isinstance(config, dict):
            raise InputError(f"{file}: tool {number}: needs class_name: module.Class and config")
        if (kind := cast(dict[str, Any], config).get("type", "native")) != "native":
            raise InputError(
                f"{file}: tool {number}: type {kind} is no class; name its server in environment.mcp of the run,"
                " and leave it out"
            )
        yield f"{module}:{name}", {"config": config, "tool_schema": fields.get("tool_schema")}


def function_tools(file: Path) -> list[str]:
    """The functions of a Python file that verl's function_tool decorates; nothing of it runs. Raises InputError."""
    try:
        tree = ast.parse(_text(file))
    except SyntaxError as error:
        raise InputError(f"{file}: is no Python ({error})") from None
    functions = [
        one for one in tree.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    found = [one.name for one in functions if any(map(_is_function_tool, one.decorator_list))]
    if not found:
        raise InputError(f"{file}: has no function under @function_tool; decorate one")
    return found


def _is_function_tool(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(called).rpartition(".")[2] == "function_tool"


def _read(file: Path) -> Any:
    try:
        return yaml.safe_load(_text(file))
    except yaml.YAMLError as error:
        raise InputError(f"{file}: is no YAML ({error})") from None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read ({error}); bring it") from None


def response_length(value: Any, theirs: Theirs) -> KeyOutcome:
    if not has_turns(theirs):
        return OFF
    return KeyOutcome("mapped", "", {"environment.max_message_chars": int(value)})


def truncated_side(value: Any, theirs: Theirs) -> KeyOutcome:
    if value == "right" or not has_turns(theirs):
        return KeyOutcome("ignored", "it is so here")
    return KeyOutcome("noted", "a longer answer of a tool is cut at its end here")


def parallel_calls(value: Any, theirs: Theirs) -> KeyOutcome:
    if not has_turns(theirs):
        return OFF
    return KeyOutcome("noted", f"all calls of a message are answered here, there the first {value}")


def loop(value: Any, theirs: Theirs) -> KeyOutcome:
    if value in LOOPS:
        return KeyOutcome("ignored", "environment says whether there are tools")
    return KeyOutcome("refused", OWN_LOOP)


def as_in_turns(name: str) -> Convert:
    """Of the loader, which takes the key of the rollout there."""

    def convert(value: Any, theirs: Theirs) -> KeyOutcome:
        if value is None or value == theirs[f"{TURNS}.{name}"]:
            return KeyOutcome("ignored", f"it is {TURNS}.{name}")
        return KeyOutcome("refused", f"give {TURNS}.{name}={value}, and leave it out")

    return convert
