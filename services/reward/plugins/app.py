"""A reward function as an HTTP server: contract.py, and OpenRLHF's get_reward.

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

from fastapi import APIRouter, FastAPI, Response, Security
from fastapi.security import HTTPBearer

from services.reward.plugins.app_answers import Answers, KeyReusedError, Made
from services.reward.plugins.app_forms import (
    RewardQuery,
    Rewards,
    query_samples,
    result_of,
    sample_of,
)
from services.reward.plugins.app_limits import Guard, Refused, ServerLimits
from services.reward.plugins.app_problems import add_handlers, problem_schema, problems
from services.reward.plugins.contract import (
    CONTRACT,
    Health,
    Info,
    NotScored,
    PluginSample,
    ScoreAnswer,
    Scored,
    ScoreRequest,
)
from services.reward.scoring import Judge
from trimaran.rewards import Sample


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
    routes.add_to(app, Guard(token, limits))
    add_handlers(app)
    return app


class Routes:
    """What the server answers; one method a path."""

    def __init__(
        self, judge: Judge, info: Info, options: Mapping[str, Any], limits: ServerLimits
    ) -> None:
        self._judge, self._info, self._options, self._limits = judge, info, dict(options), limits
        self._answers = Answers()

    def add_to(self, app: FastAPI, guard: Guard) -> None:
        probes = APIRouter(route_class=guard.route_class(open_to_all=True))
        probes.get("/v1/health", responses=problems(500, 503))(self.health)
        routes = APIRouter(
            route_class=guard.route_class(),
            # For the schema; the guard has looked at the token before.
            dependencies=[Security(HTTPBearer(auto_error=False))] if guard.wants_token else [],
        )
        routes.get("/v1/info", responses=problems(401, 500))(self.describe)
        routes.post(
            "/v1/score",
            response_model=ScoreAnswer,
            responses=problems(401, 408, 413, 422, 500, 503)
            | problem_schema(409, "The idempotency key was used for another request."),
        )(self.score)
        routes.post("/get_reward", responses=problems(401, 408, 413, 422, 500, 503))(
            self.get_reward
        )
        app.include_router(probes)
        app.include_router(routes)

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
        self._check_number(len(request.samples))
        self._check_tokens(request.samples)
        if request.options and request.options != self._options:
            raise Refused(
                422,
                "options: this server's function has the options that it was started with;"
                " leave them out here and start it with --option key=value",
            )

        async def make() -> Made:
            results = await self._score_all([sample_of(sample) for sample in request.samples])
            answer = ScoreAnswer(contract=CONTRACT, results=results)
            final = all(isinstance(result, Scored) for result in results)
            return Made(answer.model_dump_json(exclude_defaults=True).encode(), final)

        digest = hashlib.sha256(request.model_dump_json().encode()).digest()
        try:
            answer = await self._answers.get_or_make(request.idempotency_key, digest, make)
        except KeyReusedError:
            raise Refused(
                409, "idempotency_key: used for another request; give each request its own"
            ) from None
        return Response(answer, media_type="application/json")

    async def get_reward(self, request: RewardQuery) -> Rewards:
        """OpenRLHF's form. It has numbers only, so one faulted sample makes the batch a 503."""
        self._check_number(len(request.query))
        results = await self._score_all(query_samples(request))
        scores = [result.score for result in results if isinstance(result, Scored)]
        faults = [result.faulted for result in results if isinstance(result, NotScored)]
        if faults:
            raise Refused(
                503,
                f"{len(faults)} of {len(results)} samples could not be scored, and get_reward can"
                f" only answer with numbers; the first: {faults[0]}",
                Retry_After="1",
            )
        return Rewards(rewards=scores)

    async def _score_all(self, samples: Sequence[Sample]) -> list[Scored | NotScored]:
        seconds = self._limits.score_seconds
        try:
            async with asyncio.timeout(seconds):
                outcomes = await self._judge(samples)
        except TimeoutError:
            raise Refused(
                503,
                f"not scored within {seconds:g} s; send fewer samples at a time",
                Retry_After="1",
            ) from None
        return [result_of(outcome, self._info) for outcome in outcomes]

    def _check_number(self, count: int) -> None:
        if count > (most := self._info.max_samples):
            raise Refused(413, f"too many samples; one request may have {most}")

    def _check_tokens(self, samples: Sequence[PluginSample]) -> None:
        if sum(sample.num_tokens for sample in samples) > (most := self._limits.max_tokens):
            raise Refused(
                413, f"num_tokens: more than {most:,} in all; send fewer samples at a time"
            )
