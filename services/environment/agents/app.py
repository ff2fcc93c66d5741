"""The endpoint over HTTP: of each episode one of its own, below its name, for the holder of its key.

POST /episodes/17.1.0/v1/chat/completions    the policy's next turn; streamed, too
GET  /episodes/17.1.0/v1/models              the one name there is
POST /episodes/17.1.0/v1/reward              {"reward": 1.0, "done": true}

With the endpoint's own token:

POST /v1/episodes/next                       of an episode that waits: its base_url, api_key and row
POST /v1/chat/completions                    the run's live weights, for the operator's own client
GET  /v1/models
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services.environment.agents import openai_errors
from services.environment.agents.desk import Desk
from services.environment.agents.forms import ChatRequest, streamed_answer, whole_answer
from services.environment.agents.live import LiveAnswer
from services.environment.agents.offers import Offers
from trimaran.errors import InputError, NotFoundError, UnauthenticatedError
from trimaran.trust.access import new_token
from trimaran.types import Message, Usage
from trimaran.wire.http_problems import read_body

MAX_BODY_BYTES = 16 << 20
BODY_SECONDS = 30.0
CLIENT_CLOSED = 499
"""nginx's word for a client that has gone; nothing reads it."""
OFFER_SECONDS = 25.0
"""For an episode to come, before who asks for one is asked to ask again: 204."""
Result = TypeVar("Result")


class GoneError(Exception):
    """The client did not wait for its answer."""


class _Report(BaseModel):
    model_config = ConfigDict(extra="forbid")

    reward: Annotated[float, Field(allow_inf_nan=False)] | None = None
    done: bool = False


@dataclass(frozen=True, slots=True)
class Rules:
    """What the run says to requests. Example: Rules("SmolLM2-135M-Instruct", frozenset(["END"]))"""

    model: str
    stops: frozenset[str] = frozenset()

    def check_model(self, request: ChatRequest) -> None:
        """Raises NotFoundError."""
        if request.model != self.model:
            raise NotFoundError(
                f"model: {request.model}: there is {self.model} alone (OPENAI_MODEL)"
            )

    def check_stops(self, request: ChatRequest) -> None:
        """Raises InputError."""
        if unknown := sorted(request.stops - self.stops):
            raise InputError(
                f"stop: {json.dumps(unknown)}: no stops of this run; name them in environment.stop"
            )


@dataclass(slots=True)
class Desks:
    """Those that have a desk now, by name, and those that wait for a program."""

    rules: Rules
    token: str = field(repr=False)
    """Of the endpoint itself."""
    url: str = ""
    """For programs that are started elsewhere."""
    desks: dict[str, Desk] = field(default_factory=dict[str, Desk])
    offers: Offers = field(default_factory=Offers)

    def find(self, name: str, request: Request) -> Desk:
        """Raises UnauthenticatedError, also for a name that there is not."""
        desk = self.desks.get(name)
        check_token(request, desk.key if desk else "", "OPENAI_API_KEY has it")
        assert desk
        return desk


def check_token(request: Request, token: str, where: str) -> None:
    """Raises UnauthenticatedError for any other, and where there is none."""
    shown = request.headers.get("authorization", "").removeprefix("Bearer ")
    if not token or not hmac.compare_digest(shown.encode(), token.encode()):
        raise UnauthenticatedError(
            f"not the key of an episode that goes on, or of the endpoint; {where}"
        )


Live = Callable[[ChatRequest], Coroutine[Any, Any, LiveAnswer]]


def make_app(episodes: Desks, live: Live) -> FastAPI:
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    openai_errors.add_handlers(app)
    app.include_router(_episode_routes(episodes))
    app.include_router(_own_routes(episodes, live))
    return app


def path_of(name: str) -> str:
    """Of an episode."""
    return f"/episodes/{quote(name, safe='')}/v1"


def _own_routes(episodes: Desks, live: Live) -> APIRouter:
    router = APIRouter(prefix="/v1")
    place = "the run's folder has it in endpoint-0.json"

    @router.post("/episodes/next")
    async def take(request: Request) -> Response:
        check_token(request, episodes.token, place)
        await read(request, lambda body: None)
        try:
            offer = await unless_gone(request, episodes.offers.take(OFFER_SECONDS))
        except GoneError:
            return Response(status_code=CLIENT_CLOSED)
        if offer is None:
            return Response(status_code=204)
        base_url = episodes.url + path_of(offer.name)
        model = episodes.rules.model
        reported = {
            "base_url": base_url,
            "api_key": offer.desk.key,
            "model": model,
            "row": offer.row,
        }
        return JSONResponse({"episode": offer.name, **reported})

    @router.post("/chat/completions")
    async def complete(request: Request) -> Response:
        check_token(request, episodes.token, place)
        asked = await read(request, ChatRequest.read)
        episodes.rules.check_model(asked)
        try:
            said = await unless_gone(request, live(asked))
        except GoneError:
            return Response(status_code=CLIENT_CLOSED)
        head = _head(f"live-{new_token()[:16]}", asked)
        head["system_fingerprint"] = said.version
        return _respond(asked, head, said.message, said.finish_reason, said.usage)

    @router.get("/models")
    async def models(request: Request) -> Response:
        check_token(request, episodes.token, place)
        return model_list(episodes.rules.model)

    return router


def _episode_routes(episodes: Desks) -> APIRouter:
    router = APIRouter(prefix="/episodes/{name:path}/v1")

    @router.post("/chat/completions")
    async def complete(name: str, request: Request) -> Response:
        desk = episodes.find(name, request)
        asked = await read(request, ChatRequest.read)
        episodes.rules.check_model(asked)
        episodes.rules.check_stops(asked)
        try:
            answer = await unless_gone(request, desk.ask(asked.to_request()))
        except GoneError:
            return Response(status_code=CLIENT_CLOSED)
        head = _head(f"{name}-{answer.turn}", asked)
        return _respond(asked, head, answer.message, answer.finish_reason, answer.usage)

    @router.get("/models")
    async def models(name: str, request: Request) -> Response:
        episodes.find(name, request)
        return model_list(episodes.rules.model)

    @router.post("/reward")
    async def report(name: str, request: Request) -> Response:
        desk = episodes.find(name, request)
        reported = await read(request, _read_report)
        desk.report(reported.reward, reported.done)
        return JSONResponse({})

    return router


def _head(name: str, asked: ChatRequest) -> dict[str, Any]:
    return {"id": f"chatcmpl-{name}", "created": int(time.time()), "model": asked.model}


def _respond(
    asked: ChatRequest, head: dict[str, Any], message: Message, finish_reason: str, usage: Usage
) -> Response:
    if asked.stream:
        events = streamed_answer(head, message, finish_reason, usage, asked.with_usage)
        return StreamingResponse(events, media_type="text/event-stream")
    return JSONResponse(whole_answer(head, message, finish_reason, usage))


def model_list(model: str) -> Response:
    entry = {"id": model, "object": "model", "created": 0, "owned_by": "trimaran"}
    return JSONResponse({"object": "list", "data": [entry]})


def _read_report(body: bytes) -> _Report:
    try:
        return _Report.model_validate_json(body)
    except ValidationError as error:
        raise InputError(
            f"the body: {error.errors()[0]['msg']}; send"
            ' {"reward": a number, "done": true or false}'
        ) from None


async def read(request: Request, decode: Callable[[bytes], Result]) -> Result:
    """The decoded body. Raises InputError."""
    body = await read_body(request.receive, MAX_BODY_BYTES, BODY_SECONDS)
    if isinstance(body, bytes):
        return decode(body)
    raise InputError(body.detail)


async def unless_gone(request: Request, working: Coroutine[Any, Any, Result]) -> Result:
    """What comes of it; it is cancelled where the client closes its connection, which raises GoneError."""
    task = asyncio.create_task(working)
    gone = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise GoneError
        return task.result()
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
