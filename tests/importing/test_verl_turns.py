"""verl's multi-turn runs: what their keys and files of tools become."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import Any

import pytest

from services.environment.local.host import LocalHost, load_spec
from tests.importing.test_tables import converted
from trimaran.config import RunConfig, parse_config
from trimaran.trust.allowed import Allowed
from trimaran.types import Message, Prompt, ToolCall

TURNS, LOOP = (
    f"actor_rollout_ref.rollout.{key}" for key in ("multi_turn", "agent.default_agent_loop")
)
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


def made(tmp_path: Path, text: str = SEARCH, **more: Any) -> Any:
    path = tmp_path / "tools.yaml"
    path.write_text(text)
    keys = {f"{TURNS}.enable": True, f"{TURNS}.tool_config_path": str(path), **more}
    return converted("verl", **keys)


def config_of(tmp_path: Path, **more: Any) -> RunConfig:
    found = made(tmp_path, **more)
    assert not found.having("refused") and not found.unknown
    return parse_config(found.tree)


def test_the_tools_of_a_file_become_the_environment(tmp_path: Path) -> None:
    bounds = {f"{TURNS}.max_assistant_turns": 5, f"{TURNS}.max_user_turns": 3}
    keys = {**bounds, f"{TURNS}.max_tool_response_length": 64, f"{TURNS}.format": "hermes"}
    found = config_of(tmp_path, **keys, **{"data.max_response_length": 2048}).environment
    assert found and found.tools == ("search_tools:SearchTool",)
    options: Any = found.options["SearchTool"]
    assert options["config"] == {"missing": "nobody", "type": "native"}
    assert options["tool_schema"]["function"]["name"] == "look_up"
    assert (found.max_turns, found.max_tokens, found.max_message_chars) == (4, 2048, 64)
    assert (found.weight, found.history) == (0.0, "exact")
    note = made(tmp_path).having("noted")[f"{TURNS}.enable"]
    assert "--allow search_tools:SearchTool" in note and "at its end" in note


async def test_a_tool_of_theirs_answers_in_an_episode_as_its_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "search_tools.py").write_text(TOOL)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    config = config_of(tmp_path)
    found = config.environment
    assert found
    allowed = Allowed.from_entries(["search_tools:SearchTool"])
    known = {"tools_kwargs": {"look_up": {"create_kwargs": {"known": {"Ann": "31"}}}}}
    prompt = Prompt("p:1", (Message("user", "How old?"),), "t", "", {"extra_info": dumps(known)})
    async with LocalHost(found, load_spec(config, found, allowed), allowed) as host:
        episode = host.create("1.1.0")
        opening = await episode.open(prompt, seed=1)
        calls = [ToolCall("look_up", dumps({"name": name})) for name in ("Ann", "Bob")]
        reply = await episode.step(Message("assistant", "", tool_calls=tuple(calls)), "stop")
        await episode.close()
    assert opening.tools[0].name == "look_up"
    assert [answer.text for answer in reply.messages] == ["look_up: 31", "look_up: nobody"]


def test_the_loop_of_tools_alone_is_enough_and_turns_have_no_bound(tmp_path: Path) -> None:
    found = config_of(tmp_path, **{f"{TURNS}.enable": False, LOOP: "tool_agent"}).environment
    assert found and found.max_turns == 512


def test_answers_of_one_turn_have_no_environment() -> None:
    found = converted("verl", **{f"{TURNS}.enable": False, f"{TURNS}.max_assistant_turns": 5})
    assert "environment" not in found.tree


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tools: []", "has no list `tools`"),
        ("tools: [{class_name: Search}]", "tool 1: needs class_name: module.Class"),
        ("tools: [{class_name: a.B, config: {type: mcp}}]", "environment.mcp"),
        ("tools: [", "not YAML"),
        ("tools: [{class_name: a.B}, {class_name: c.B}]", "has two classes of one name"),
    ],
)
def test_a_file_of_tools_that_cannot_be_used_is_refused(
    tmp_path: Path, text: str, words: str
) -> None:
    assert words in made(tmp_path, text).having("refused")[f"{TURNS}.enable"]
