"""A tool written for verl loads as it stands, without verl."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.environment.loading.load import LoadSpec, load
from services.environment.workers.worker import Worker
from trimaran.errors import InputError

TOOL = """
import logging
from typing import Any, Optional
from uuid import uuid4

from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse
from verl.utils.rollout_trace import rollout_trace_op


class Checker(BaseTool):
    def __init__(self, config: dict, tool_schema: OpenAIFunctionToolSchema):
        super().__init__(config, tool_schema)
        self.best = {}

    async def create(self, instance_id: Optional[str] = None, ground_truth: Optional[str] = None, **kwargs):
        instance_id = instance_id or str(uuid4())
        truth = ground_truth or kwargs.get("create_kwargs", {}).get("ground_truth")
        self.best[instance_id] = {"truth": truth, "score": 0.0}
        return instance_id, ToolResponse()

    @rollout_trace_op
    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs):
        score = float(parameters.get("answer", "") == self.best[instance_id]["truth"])
        self.best[instance_id]["score"] = max(score, self.best[instance_id]["score"])
        return ToolResponse(text=f"score {score} {self.config['unit']}"), score, {}

    async def calc_reward(self, instance_id: str, **kwargs) -> float:
        return self.best[instance_id]["score"]

    async def release(self, instance_id: str, **kwargs) -> None:
        del self.best[instance_id]
"""
PARAMETERS = {
    "type": "object",
    "properties": {"answer": {"type": "string", "description": "The answer."}},
    "required": ["answer"],
}
OPTIONS = {
    "config": {"type": "native", "unit": "points"},
    "tool_schema": {
        "type": "function",
        "function": {"name": "check", "description": "Checks.", "parameters": PARAMETERS},
    },
}


@pytest.fixture(autouse=True)
def without_verl() -> Iterator[None]:
    """The names that stand for it are gone behind the test."""
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "verl"]:
        del sys.modules[name]


@pytest.fixture
def target(tmp_path: Path) -> str:
    file = tmp_path / "checker.py"
    file.write_text(TOOL)
    return f"{file}:Checker"


def row(**extras: Any) -> dict[str, Any]:
    texts = {name: json.dumps(value) for name, value in extras.items()}
    return {
        "prompt_id": "p",
        "task": "t",
        "answer": "7",
        "extras": texts,
        "messages": [],
        "seed": 1,
    }


@pytest.mark.parametrize("by", ["factory", "tools"])
def test_an_instance_lives_as_long_as_its_episode(target: str, by: str) -> None:
    spec = (
        LoadSpec(factory=target, options=OPTIONS)
        if by == "factory"
        else LoadSpec(tools=(target,), options={"Checker": OPTIONS})
    )
    worker = Worker(spec, 4096, 1000)
    loaded = worker.answer({"do": "load"})
    assert loaded["tools"] == [
        {"name": "check", "description": "Checks.", "parameters": json.dumps(PARAMETERS)}
    ]
    words = {"check": {"create_kwargs": {"ground_truth": "7"}}}
    for extras in ({"tools_kwargs": words}, {"extra_info": {"tools_kwargs": words}}):
        assert worker.answer({"do": "open", "row": row(**extras)}) == {"said": ""}
        reported: list[Any] = []
        for answer in ("7", "8"):
            call = ["check", json.dumps({"answer": answer})]
            reported += worker.answer({"do": "call", "calls": [call]})["answers"]
        assert reported == [("score 1.0 points", False), ("score 0.0 points", False)]
        assert worker.answer({"do": "reward"}) == {"reward": 1.0}
        worker.answer({"do": "close"})
        assert "fault" in worker.answer({"do": "reward"})  # it is released


def test_a_tool_without_its_schema_is_refused(target: str) -> None:
    with pytest.raises(InputError, match=r"checker\.py:Checker: cannot be made: AttributeError"):
        load(LoadSpec(factory=target))


def test_what_is_missed_of_verl_is_named(tmp_path: Path) -> None:
    file = tmp_path / "more.py"
    file.write_text("from verl.utils.reward_score import gsm8k\n")
    with pytest.raises(InputError, match=r"ModuleNotFoundError: .*verl\.utils\.reward_score"):
        load(LoadSpec(factory=f"{file}:Tool"))
