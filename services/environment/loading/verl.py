"""Tool classes of verl (`BaseTool`, 0.9): one instance of each an episode, between `create` and `release`.

verl itself creates and releases one a call since 0.9; its base class says "for a trajectory", and tools that
keep a state, such as the best answer so far, need that.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from services.environment.loading import verl_names
from services.environment.loading.boxes import columns_of
from services.environment.loading.functions import CallableTool
from services.environment.loading.waiting import settled, taken_by
from trimaran.episodes import Row
from trimaran.types import Tool

METHODS = ("create", "execute", "calc_reward", "release")


def is_verl(target: Any) -> bool:
    """Whether a class is one of verl's tools."""
    return isinstance(target, type) and all(hasattr(target, name) for name in METHODS)


def provide_verl() -> None:
    """What verl's tools import: verl where it is installed, else names of ours."""
    if "verl" not in sys.modules and importlib.util.find_spec("verl") is None:
        verl_names.install()


class VerlBox:
    """Example: VerlBox(Gsm8kTool, {"config": {}, "tool_schema": {…}}, "answer")"""

    def __init__(self, kind: Any, options: Mapping[str, Any], answer_key: str) -> None:
        schemas: Any = importlib.import_module("verl.tools.schemas")
        given = options.get("tool_schema")
        schema = given and schemas.OpenAIFunctionToolSchema.model_validate(given)
        self._tool = kind(config=dict(options.get("config", {})), tool_schema=schema)
        self._answer_key = answer_key
        self._instance, self._context = "", SimpleNamespace()
        shown = self._tool.tool_schema.model_dump(exclude_unset=True, exclude_none=True)["function"]
        parameters = shown.get("parameters", {"type": "object", "properties": {}})
        tool = Tool(shown["name"], shown["description"], json.dumps(parameters, ensure_ascii=False))
        self.tools = {tool.name: CallableTool(tool, self._execute)}

    def open(self, row: Row) -> str:
        """With what the row says in `tools_kwargs`, of its own or of `extra_info`."""
        columns = columns_of(row, self._answer_key)
        extra_info = columns.get("extra_info")
        nested = extra_info if isinstance(extra_info, dict) else {}
        words = columns.get("tools_kwargs") or nested.get("tools_kwargs") or {}
        given = words.get(self._tool.name, {}).get("create_kwargs", {})
        create = self._tool.create
        made = settled(create(**taken_by(create, {"create_kwargs": given, **given})))
        self._instance = made[0] if isinstance(made, tuple) else made
        self._context = SimpleNamespace(
            messages=row["messages"], tools_kwargs=words, extra_fields={}
        )
        return ""

    def reward(self) -> float | None:
        return float(settled(self._tool.calc_reward(self._instance)))

    def close(self) -> None:
        settled(self._tool.release(self._instance))

    async def _execute(self, arguments: Mapping[str, Any]) -> str:
        execute = self._tool.execute
        given = taken_by(execute, {"agent_data": self._context})
        response, *_ = await execute(self._instance, dict(arguments), **given)
        if getattr(response, "image", None) or getattr(response, "video", None):
            raise ValueError("it answers with an image or a video; only texts are passed on")
        return response if isinstance(response, str) else response.text or ""
