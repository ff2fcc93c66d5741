"""Plugins that are wrong in one way."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

Answer = tuple[int, Any]


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    number: int
    """Of requests that this plugin has had."""
    memory: dict[str, Any] = field(default_factory=dict)
    """What the plugin keeps between requests."""

    @property
    def tree(self) -> dict[str, Any]:
        try:
            tree = json.loads(self.body)
        except ValueError:
            return {}
        return tree if isinstance(tree, dict) else {}


Right = Callable[..., Awaitable[Answer]]
"""What the right plugin answers; `headers` and `body` replace the request's."""
Break = Callable[[Request, Right], Awaitable[Answer]]


class Broken:
    """A right plugin behind someone who changes what it hears and says."""

    def __init__(self, app: Any, change: Break) -> None:
        self._app = app
        self._change, self._numbers, self._memory = change, count(), {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self._memory["left"] = True
                return
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        request = Request(
            scope["method"], scope["path"], headers, body, next(self._numbers), self._memory
        )

        async def right(body: bytes = body, headers: dict[str, str] = headers) -> Answer:
            return await self._ask(scope, body, headers)

        status, answer = await self._change(request, right)
        text = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        await send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(b"content-length", str(len(text)).encode())],
            }
        )
        await send({"type": "http.response.body", "body": text})

    async def _ask(self, scope: Any, body: bytes, headers: dict[str, str]) -> Answer:
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": body}

        async def send(message: Any) -> None:
            sent.append(message)

        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        raw = [(name, value) for name, value in raw if name != b"content-length"]
        await self._app({**scope, "headers": raw}, receive, send)
        text = b"".join(message.get("body", b"") for message in sent[1:])
        return sent[0]["status"], json.loads(text)
