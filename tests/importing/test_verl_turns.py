"""verl's multi-turn runs: what their keys and files of tools become."""

from __future__ import annotations

import asyncio
from json import dumps
from pathlib import Path
from typing import Any

import pytest

from commands.importing.verl_turns import function_tools
from services.environment.local.host import LocalHost, load_spec
from tests.importing.test_tables import converted
from trimaran.config import EnvironmentSection, parse_config
from trimaran.errors import InputError
from trimaran.trust.allowed import Allowed
from trimaran.types import Message, Prompt, ToolCall

TURNS, AGENT = "actor_rollout_ref.rollout.multi_turn", "actor_rollout_ref.rollout.agent"
CONFIGURED = """
tools:
  - class_name: mine.search.SearchTool
    config: {url: "http://127.0.0.1:8000", type: native}
    tool_schema:
      type: function
      function: {name: search, description: Look up., parameters: {type: object, properties: {}}}
  - class_name: mine.other.Calculator
    config: {type: native}
"""
FUNCTIONS = """
import verl.tools.function_tool as tools
from verl.tools.function_tool import function_tool

@function_tool
def add(a: int, b: int) -> int:
    "Add."
    return a + b

@tools.function_tool("multiply")
async def product(a: int, b: int) -> int: ...

def helper(): ...
"""


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def section(**given: Any) -> EnvironmentSection | None:
    made = converted("verl", **given)
    assert not made.having("refused") and not made.unknown
    return parse_config(made.tree).environment


def test_tools_of_a_configured_file_and_functions_become_the_environment(tmp_path: Path) -> None:
    configured = written(tmp_path / "tools.yaml", CONFIGURED)
    functions = written(tmp_path / "functions.py", FUNCTIONS)
    found = section(
        **{
            f"{TURNS}.enable": True,
            f"{TURNS}.tool_config_path": configured,
            f"{TURNS}.function_tool_path": functions,
            f"{TURNS}.max_assistant_turns": 5,
            f"{TURNS}.max_user_turns": 3,
            f"{TURNS}.max_tool_response_length": 512,
            f"{TURNS}.format": "hermes",
            "data.tool_config_path": configured,
            "data.max_response_length": 2048,
        }
    )
    assert found
    assert found.tools == (
        *("mine.search:SearchTool", "mine.other:Calculator"),
        *(f"{functions}:add", f"{functions}:product"),
    )
    options: Any = found.options
    assert options["SearchTool"]["config"] == {"url": "http://127.0.0.1:8000", "type": "native"}
    assert options["SearchTool"]["tool_schema"]["function"]["name"] == "search"
    assert options["Calculator"]["tool_schema"] is None
    assert (found.max_turns, found.max_tokens, found.max_message_chars) == (4, 2048, 512)
    assert (found.weight, found.history) == (0.0, "exact")


TOOL = """
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import ToolResponse


class SearchTool(BaseTool):
    async def create(self, instance_id=None, **kwargs):
        self.found = kwargs["create_kwargs"]["known"]
        return "one", ToolResponse()

    async def execute(self, instance_id, parameters, **kwargs):
        found = self.found.get(parameters["name"], self.config["missing"])
        return ToolResponse(text=f"{self.name}: {found}"), 0.0, {}
"""
SEARCH = """
tools:
  - class_name: search_tools.SearchTool
    config: {missing: nobody, type: native}
    tool_schema:
      type: function
      function:
        name: look_up
        description: Finds an age.
        parameters: {type: object, properties: {name: {type: string}}, required: [name]}
"""


def test_a_tool_of_theirs_answers_in_an_episode_as_its_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "search_tools.py", TOOL)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    keys = {
        f"{TURNS}.enable": True,
        f"{TURNS}.tool_config_path": written(tmp_path / "tools.yaml", SEARCH),
    }
    config = parse_config(converted("verl", **keys).tree)
    found = config.environment
    assert found
    allowed = Allowed.from_entries(["search_tools:SearchTool"])
    known = {"tools_kwargs": {"look_up": {"create_kwargs": {"known": {"Ann": "31"}}}}}
    prompt = Prompt("p:1", (Message("user", "How old?"),), "t", "", {"extra_info": dumps(known)})

    async def play() -> list[str]:
        async with LocalHost(found, load_spec(config, found, allowed), allowed) as host:
            episode = host.create("1.1.0")
            opening = await episode.open(prompt, seed=1)
            calls = [ToolCall("look_up", dumps({"name": name})) for name in ("Ann", "Bob")]
            message = Message("assistant", "", tool_calls=tuple(calls))
            reply = await episode.step(message, "stop")
            await episode.close()
            return [opening.tools[0].name, *(answer.text for answer in reply.messages)]

    assert asyncio.run(play()) == ["look_up", "look_up: 31", "look_up: nobody"]


def test_the_loop_of_tools_alone_is_enough_and_turns_have_no_bound(tmp_path: Path) -> None:
    found = section(
        **{
            f"{AGENT}.default_agent_loop": "tool_agent",
            f"{TURNS}.function_tool_path": written(tmp_path / "functions.py", FUNCTIONS),
            f"{TURNS}.use_inference_chat_template": True,
        }
    )
    assert found and (found.max_turns, found.history) == (512, "template")


def test_answers_of_one_turn_have_no_environment() -> None:
    keys = {f"{TURNS}.enable": False, f"{TURNS}.max_assistant_turns": 5, f"{AGENT}.num_workers": 8}
    made = converted("verl", **keys)
    assert "environment" not in made.tree
    assert not [key for key in made.having("noted") if key.startswith((TURNS, AGENT))]


def test_what_differs_is_said(tmp_path: Path) -> None:
    functions = written(tmp_path / "functions.py", FUNCTIONS)
    noted = converted(
        "verl", **{f"{TURNS}.enable": True, f"{TURNS}.function_tool_path": functions}
    ).having("noted")
    assert f"--allow {functions}:add --allow {functions}:product" in noted[f"{TURNS}.enable"]
    assert "the first 1" in noted[f"{TURNS}.max_parallel_calls"]
    assert "at its end" in noted[f"{TURNS}.tool_response_truncate_side"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read"),
        ("tools: []", "has no list `tools`"),
        ("tools: [{class_name: Search}]", "tool 1: needs class_name: module.Class"),
        ("tools: [{class_name: a.B, config: {type: mcp}}]", "environment.mcp"),
        ("tools: [", "is no YAML"),
        ("tools: [{class_name: a.B}, {class_name: c.B}]", "has B twice"),
    ],
)
def test_a_file_of_tools_that_cannot_be_used_is_refused(
    tmp_path: Path, text: str | None, words: str
) -> None:
    path = tmp_path / "tools.yaml"
    if text is not None:
        path.write_text(text)
    keys = {f"{TURNS}.enable": True, f"{TURNS}.tool_config_path": str(path)}
    assert words in converted("verl", **keys).having("refused")[f"{TURNS}.enable"]


def test_a_file_without_decorated_functions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no function under @function_tool"):
        function_tools(Path(written(tmp_path / "a.py", "def add(): ...")))
