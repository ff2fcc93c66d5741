"""An OpenEnv server's `/schema` and `/ws`, message for message as openenv 0.10.0's own answered."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, Self

from aiohttp import WSMsgType, web

ECHO = {
    "additionalProperties": False,
    "properties": {
        "metadata": {"additionalProperties": True, "type": "object"},
        "message": {"description": "Message to echo back", "type": "string"},
    },
    "required": ["message"],
    "type": "object",
}
CALLS = {
    "properties": {
        "metadata": {"type": "object"},
        "type": {"const": "call_tool", "default": "call_tool", "type": "string"},
        "tool_name": {"type": "string"},
        "arguments": {"additionalProperties": True, "type": "object"},
    },
    "required": ["tool_name"],
    "type": "object",
}
ADD = {"name": "add", "description": "Add two numbers.", "input_schema": {"type": "object"}}

Frame = dict[str, Any]
Answers = Callable[[Frame, web.WebSocketResponse], Awaitable[Frame | None]]


def observation(reward: float | None = None, done: bool = False, **fields: Any) -> Frame:
    inner = {"metadata": {}, **fields}
    return {"type": "observation", "data": {"observation": inner, "reward": reward, "done": done}}


def error(code: str, message: str, **more: Any) -> Frame:
    return {"type": "error", "data": {"message": message, "code": code, **more}}


async def echo(frame: Frame, _: web.WebSocketResponse) -> Frame | None:
    data = frame.get("data", {})
    if frame["type"] == "reset":
        return observation(0.0, echoed_message=f"ready {json.dumps(data)}", message_length=0)
    if set(data) != {"message"}:
        errors = [{"loc": ["message"], "msg": "Field required"}]
        errors += [{"loc": [name], "msg": "Extra inputs are not permitted"} for name in data]
        return error("VALIDATION_ERROR", "Invalid message", errors=errors)
    text = data["message"]
    if text == "raise":
        return error("EXECUTION_ERROR", "boom")
    return observation(len(text) / 10, text == "end", echoed_message=text, message_length=len(text))


async def calls(frame: Frame, _: web.WebSocketResponse) -> Frame | None:
    data = frame.get("data", {})
    if frame["type"] == "reset":
        return observation(0.0)
    if data["type"] == "list_tools":
        return observation(tools=[ADD])
    if data["tool_name"] != "add":
        reported = {"message": f"Unknown tool: '{data['tool_name']}'"}
        return observation(tool_name=data["tool_name"], result=None, error=reported)
    total = data["arguments"]["a"] + data["arguments"]["b"]
    part = {"type": "text", "text": str(total), "annotations": None, "meta": None}
    result = {"content": [part], "structured_content": {"result": total}, "is_error": False}
    return observation(tool_name="add", result=result, error=None)


class OpenEnvServer:
    """`answers` to each frame; None: nothing. `room`: sessions at a time."""

    def __init__(self, answers: Answers = echo, schema: Frame = ECHO, room: int = 8) -> None:
        self.answers, self.schema, self.room = answers, schema, room
        self.open: list[web.WebSocketResponse] = []
        self.received: list[Frame] = []

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/schema", self._schema)
        app.router.add_get("/ws", self._ws)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    async def _schema(self, _: web.Request) -> web.Response:
        return web.json_response({"action": self.schema, "observation": {}, "state": {}})

    async def _ws(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        if len(self.open) >= self.room:
            full = f"Server at capacity: {len(self.open)}/{self.room} sessions active."
            await socket.send_json(error("CAPACITY_REACHED", full))
            await socket.close()
            return socket
        self.open.append(socket)
        try:
            async for message in socket:
                if message.type is not WSMsgType.TEXT:
                    break
                frame = json.loads(message.data)
                self.received.append(frame)
                if frame["type"] == "close":
                    break
                answer = await self.answers(frame, socket)
                if answer is not None:
                    await socket.send_json(answer)
        finally:
            self.open.remove(socket)
        return socket
