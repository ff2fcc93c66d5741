"""A reward function as an HTTP server: contract.py.

An answer that crashes or hangs its checker twice gets the declared minimum (0 where none is
declared), and `indigestible` says why. Where the function or the pool fails, the sample has no
score, and `faulted` says why.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Response, Security
from fastapi.security import HTTPBearer

from services.reward.outcome import Outcome
from services.reward.plugins.contract import CONTRACT, Info, ScoreAnswer, Scored, ScoreRequest
from services.reward.plugins.serving.app_forms import result_of, sample_of
from services.reward.scoring import Judge
from trimaran.plugins.answers import Answers, KeptAnswer, KeyReusedError
from trimaran.plugins.forms import Health
from trimaran.plugins.limits import Guard, Refused, ServerLimits
from trimaran.rewards import Sample
from trimaran.wire.http_problems import add_handlers, responses

MEANINGS = {
    401: "Wrong or missing bearer token.",
    408: "The request did not arrive in time.",
    409: "The idempotency key was used for another request.",
    413: "Too many samples, bytes or tokens.",
    422: "Not a request of this contract.",
    500: "The server failed; its log says how.",
    503: "Overloaded; Retry-After says when to come back.",
}
REFUSED = (401, 408, 409, 413, 422, 500, 503)
MAX_TOKENS = 8_000_000
"""Lengths of all completions of one request together."""


def make_app(
    judge: Judge,
    info: Info,
    token: str | None = None,
    options: Mapping[str, Any] | None = None,
    limits: ServerLimits | None = None,
) -> FastAPI:
    """`judge` scores; `options` are those that its function was started with.

    Example:
        async def judge(samples: Sequence[Sample]) -> list[Outcome]:
            return [Value(float(len(sample.text) < 200)) for sample in samples]

        uvicorn.run(make_app(judge, Info(contract=CONTRACT, name="short")))
    """
    limits = limits or ServerLimits()
    routes = Routes(judge, info, options or {}, limits)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await routes.close()

    app = FastAPI(
        title="Trimaran reward plugin",
        version="1",
        description=f"Contract {CONTRACT}: scores completions over HTTP.",
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,  # their scripts would come from another host
        redoc_url=None,
    )
    routes.add_to(app, wants_token=token is not None)
    app.add_middleware(Guard, token=token, limits=limits, posts=("/v1/score",))
    add_handlers(app)
    return app


class Routes:
    """What the server answers; one method a path."""

    def __init__(
        self, judge: Judge, info: Info, options: Mapping[str, Any], limits: ServerLimits
    ) -> None:
        self._judge, self._info, self._options, self._limits = judge, info, dict(options), limits
        self._answers = Answers()

    def add_to(self, app: FastAPI, wants_token: bool) -> None:
        # For the schema; the guard looks at the token.
        bearer = [Security(HTTPBearer(auto_error=False))] if wants_token else []
        app.get("/v1/health", responses=responses((500, 503), MEANINGS))(self.health)
        app.get("/v1/info", responses=responses((401, 500), MEANINGS), dependencies=bearer)(
            self.describe
        )
        app.post(
            "/v1/score",
            response_model=ScoreAnswer,
            responses=responses(REFUSED, MEANINGS),
            dependencies=bearer,
        )(self.score)

    async def close(self) -> None:
        """Ends what is at work."""
        await self._answers.close()

    async def health(self) -> Health:
        """Whether it can score."""
        return Health(status="ok")

    async def describe(self) -> Info:
        """What it is, and which scores it gives."""
        return self._info

    async def score(self, request: ScoreRequest) -> Response:
        """One result a sample, in their order."""
        if len(request.samples) > (most := self._info.max_samples):
            raise Refused(413, f"too many samples; one request may have {most}")
        if sum(sample.num_tokens for sample in request.samples) > MAX_TOKENS:
            raise Refused(413, f"num_tokens: more than {MAX_TOKENS:,} in all; send fewer samples")
        if request.options and request.options != self._options:
            raise Refused(
                422,
                "options: this server's function has the options that it was started with;"
                " leave them out here and start it with --option key=value",
            )

        async def make() -> KeptAnswer:
            outcomes = await self._outcomes([sample_of(sample) for sample in request.samples])
            results = [result_of(outcome, self._info) for outcome in outcomes]
            answer = ScoreAnswer(contract=CONTRACT, results=results)
            final = all(isinstance(result, Scored) for result in results)
            return KeptAnswer(answer.model_dump_json(exclude_defaults=True).encode(), final)

        digest = hashlib.sha256(request.model_dump_json().encode()).digest()
        try:
            answer = await self._answers.get_or_make(request.idempotency_key, digest, make)
        except KeyReusedError:
            raise Refused(
                409, "idempotency_key: used for another request; give each request its own"
            ) from None
        return Response(answer, media_type="application/json")

    async def _outcomes(self, samples: Sequence[Sample]) -> Sequence[Outcome]:
        seconds = self._limits.work_seconds
        try:
            async with asyncio.timeout(seconds):
                return await self._judge(samples)
        except TimeoutError:
            detail = f"not scored within {seconds:g} s; send fewer samples at a time"
            raise Refused(503, detail, again=True) from None
