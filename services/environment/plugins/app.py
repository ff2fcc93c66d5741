"""Any environment as an HTTP server that keeps contract.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Response, Security
from fastapi.security import HTTPBearer
from pydantic import BaseModel

from services.environment.episodes import OpenEpisodes
from services.environment.plugins.contract import (
    CONTRACT,
    CloseAnswer,
    CloseRequest,
    Info,
    OpenAnswer,
    OpenRequest,
    StepAnswer,
    StepRequest,
)
from services.environment.plugins.forms import open_answer, prompt_of, step_answer
from trimaran.errors import NotFoundError, OutOfOrderError, TrimaranError
from trimaran.plugins.forms import Health
from trimaran.plugins.limits import Guard, Refused, ServerLimits
from trimaran.plugins.messages import message_of
from trimaran.wire.http_problems import add_handlers, responses

MEANINGS = {
    401: "Wrong or missing bearer token.",
    404: "No such session: it was not opened, was closed, or failed.",
    408: "The request did not arrive in time.",
    409: "The turn is neither the last nor the next one.",
    413: "Too many bytes.",
    422: "Not a request of this contract.",
    500: "The environment failed; the session is over.",
    503: "No room; Retry-After says when to come back.",
}
REFUSED = (401, 408, 413, 422, 500, 503)


def make_app(
    episodes: OpenEpisodes,
    info: Info,
    token: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> FastAPI:
    """`episodes` are entered and left by the caller; `options` are those that they were made with.

    Example:
        async with host, OpenEpisodes(host, section) as episodes:
            app = make_app(episodes, Info(contract=CONTRACT, name="maze"))
            await HttpServer(http_config(app)).serve([listener])
    """
    routes = EnvironmentRoutes(episodes, info, options or {})
    app = FastAPI(
        title="Trimaran environment plugin",
        version="1",
        description=f"Contract {CONTRACT}: the worlds of episodes over HTTP.",
        redirect_slashes=False,
        docs_url=None,  # their scripts would come from another host
        redoc_url=None,
    )
    routes.add_to(app, wants_token=token is not None)
    posts = ("/v1/open", "/v1/step", "/v1/close")
    limits = ServerLimits(max_requests=2 * (info.max_sessions or 64))
    app.add_middleware(Guard, token=token, limits=limits, posts=posts)
    add_handlers(app)
    return app


class EnvironmentRoutes:
    """What the server answers; one method a path."""

    def __init__(self, episodes: OpenEpisodes, info: Info, options: Mapping[str, Any]) -> None:
        self._episodes, self._info, self._options = episodes, info, dict(options)

    def add_to(self, app: FastAPI, wants_token: bool) -> None:
        # For the schema; the guard looks at the token.
        bearer = [Security(HTTPBearer(auto_error=False))] if wants_token else []
        app.get("/v1/health", responses=responses((500, 503), MEANINGS))(self.health)
        app.get("/v1/info", responses=responses((401, 500), MEANINGS), dependencies=bearer)(
            self.describe
        )
        app.post(
            "/v1/open",
            response_model=OpenAnswer,
            responses=responses(REFUSED, MEANINGS),
            dependencies=bearer,
        )(self.open)
        app.post(
            "/v1/step",
            response_model=StepAnswer,
            responses=responses((*REFUSED, 404, 409), MEANINGS),
            dependencies=bearer,
        )(self.step)
        app.post(
            "/v1/close",
            response_model=CloseAnswer,
            responses=responses(REFUSED, MEANINGS),
            dependencies=bearer,
        )(self.close)

    async def health(self) -> Health:
        """Whether it can open sessions."""
        return Health(status="ok")

    async def describe(self) -> Info:
        """What it is."""
        return self._info

    async def open(self, request: OpenRequest) -> Response:
        """A session, with what its episode begins with."""
        if request.options and request.options != self._options:
            raise Refused(
                422,
                "options: this server's environment has the options that it was started with;"
                " leave them out here and start it with --option key=value",
            )
        prompt = prompt_of(request.row)
        return _json(
            open_answer(await self._episodes.open(request.session, prompt, request.seed, 0))
        )

    async def step(self, request: StepRequest) -> Response:
        """What the environment answers to the policy's message."""
        message = message_of(request.message)
        try:
            reply = await self._episodes.step(
                request.session, request.turn, message, request.finish_reason, 0
            )
        except (NotFoundError, OutOfOrderError):
            raise
        except TrimaranError as error:  # a status that is sent again would find no session
            raise Refused(500, str(error)) from None
        return _json(step_answer(reply))

    async def close(self, request: CloseRequest) -> CloseAnswer:
        """Ends a session, also one that there is not."""
        await self._episodes.close(request.session)
        return CloseAnswer(contract=CONTRACT)


def _json(answer: BaseModel) -> Response:
    return Response(answer.model_dump_json(exclude_defaults=True), media_type="application/json")
