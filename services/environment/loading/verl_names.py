"""The few names that a file with a tool of verl imports from it, for a Python without verl."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable
from types import ModuleType
from typing import Any

from pydantic import BaseModel


class OpenAIFunctionPropertySchema(BaseModel, extra="allow"):
    type: str | list[str]
    description: str | None = None
    enum: list[Any] | None = None


class OpenAIFunctionParametersSchema(BaseModel):
    type: str = "object"
    properties: dict[str, OpenAIFunctionPropertySchema] = {}
    required: list[str] = []


class OpenAIFunctionSchema(BaseModel):
    name: str
    description: str
    parameters: OpenAIFunctionParametersSchema = OpenAIFunctionParametersSchema()
    strict: bool = False


class OpenAIFunctionToolSchema(BaseModel):
    type: str
    function: OpenAIFunctionSchema


class ToolResponse(BaseModel):
    text: str | None = None
    image: list[Any] | None = None
    video: list[Any] | None = None


class BaseTool:
    """A tool that does nothing, to be derived from."""

    def __init__(
        self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema | None
    ) -> None:
        self.config = config
        self.tool_schema = tool_schema or self.get_openai_tool_schema()
        self.name = self.tool_schema.function.name

    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema:
        return self.tool_schema

    async def create(
        self, instance_id: str | None = None, **kwargs: Any
    ) -> tuple[str, ToolResponse]:
        return instance_id or str(uuid.uuid4()), ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        return ToolResponse(), 0.0, {}

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        return 0.0

    async def release(self, instance_id: str, **kwargs: Any) -> None: ...


def rollout_trace_op(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def function_tool(name: Any = None, **_: Any) -> Any:
    """A decorator, with or without a name; the function stays what it is."""
    return name if callable(name) else lambda function: function


MODULES: dict[str, tuple[Any, ...]] = {
    "verl": (),
    "verl.tools": (),
    "verl.tools.base_tool": (BaseTool,),
    "verl.tools.function_tool": (function_tool,),
    "verl.tools.schemas": (
        *(OpenAIFunctionPropertySchema, OpenAIFunctionParametersSchema),
        *(OpenAIFunctionSchema, OpenAIFunctionToolSchema, ToolResponse),
    ),
    "verl.utils": (),
    "verl.utils.rollout_trace": (rollout_trace_op,),
}


def install() -> None:
    """Until this process ends. Idempotent."""
    for name, members in MODULES.items():
        if name not in sys.modules:
            module = sys.modules[name] = ModuleType(name)
            module.__path__ = []  # others below it are missed by their own names
            for member in members:
                setattr(module, member.__name__, member)
