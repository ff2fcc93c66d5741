"""A game as an environment plugin, on Python's standard library alone: guess a number from 1 to 16.

    python examples/environment_plugin/guess.py &
    trimaran environment check http://127.0.0.1:8800
    trimaran train examples/environment_plugin/run.yaml --allow http://127.0.0.1:8800

docs/environment-plugins.md has the contract, which a server in any language can have.
"""

from __future__ import annotations

import json
import random
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

CONTRACT = "trimaran.environment/1"
MOST = 16
MAX_BODY = 1 << 20
FIELDS = {
    "/v1/open": {"contract", "session", "row", "seed", "options"},
    "/v1/step": {"contract", "session", "turn", "message", "finish_reason"},
    "/v1/close": {"contract", "session"},
}


class Refused(Exception):
    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


@dataclass
class Game:
    number: int
    turn: int = 0
    answer: dict[str, Any] = field(default_factory=dict)
    """To the last turn: asked again, it is the same."""

    def play(self, turn: int, text: str) -> dict[str, Any]:
        if turn == self.turn:
            return self.answer
        if turn != self.turn + 1:
            raise Refused(409, f"turn {turn} after turn {self.turn}")
        guess = int(text) if text.strip().isdecimal() and len(text) < 9 else None
        said = "a number, please"
        if guess is not None:
            said = "higher" if guess < self.number else "lower"
        done = guess == self.number
        messages = [] if done else [{"role": "user", "content": said}]
        self.turn = turn
        self.answer = {"messages": messages, "reward": float(done), "done": done}
        return self.answer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    games: ClassVar[dict[str, Game]] = {}
    lock = threading.Lock()

    def do_GET(self) -> None:
        self._answer(
            {"/v1/health": {"status": "ok"}, "/v1/info": {"name": "guess", "max_sessions": 64}}.get(
                self.path
            )
        )

    def do_POST(self) -> None:
        try:
            self._answer(self._play(self._body()))
        except Refused as error:
            self._send(error.status, {"status": error.status, "detail": str(error)})

    def _body(self) -> dict[str, Any]:
        length = int(self.headers.get("Content-Length") or 0)
        if length > MAX_BODY:
            self.close_connection = True
            raise Refused(413, f"more than {MAX_BODY} bytes")
        try:
            body = json.loads(self.rfile.read(length))
        except ValueError as error:
            raise Refused(422, f"no JSON: {error}") from None
        if not isinstance(body, dict) or body.get("contract") != CONTRACT:
            raise Refused(422, f"contract: must be {CONTRACT}")
        if unknown := body.keys() - FIELDS.get(self.path, body.keys()):
            raise Refused(422, f"unknown: {', '.join(sorted(unknown))}")
        if not isinstance(body.get("session"), str):
            raise Refused(422, "session: missing")
        return body

    def _play(self, body: dict[str, Any]) -> dict[str, Any] | None:
        session = body["session"]
        with self.lock:
            if self.path == "/v1/open":
                if not isinstance(body.get("row"), dict) or not isinstance(body.get("seed"), int):
                    raise Refused(422, "row and seed: missing")
                self.games[session] = Game(random.Random(body["seed"]).randint(1, MOST))
                text = f"Guess a number from 1 to {MOST}. Answer with the number alone."
                return {"messages": [{"role": "user", "content": text}]}
            if self.path == "/v1/close":
                self.games.pop(session, None)
                return {}
            if self.path != "/v1/step":
                return None
            turn, message = body.get("turn"), body.get("message")
            if not isinstance(turn, int) or turn < 1 or not isinstance(message, dict):
                raise Refused(422, "turn and message: missing")
            if session not in self.games:
                raise Refused(404, f"session {session} is not open")
            return self.games[session].play(turn, str(message.get("content") or ""))

    def _answer(self, found: dict[str, Any] | None) -> None:
        if found is None:
            self._send(404, {"status": 404, "detail": f"no {self.path}"})
        else:
            self._send(200, {"contract": CONTRACT, **found})

    def _send(self, status: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        kind = "application/json" if status == 200 else "application/problem+json"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None: ...


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", 8800), Handler).serve_forever()
