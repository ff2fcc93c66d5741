"""A reward function as an HTTP server: contract.py, and OpenRLHF's get_reward.

An answer that no checker can digest is scored with the declared minimum (0 where none is
declared) and says so in `indigestible`; a fault of the function or of the pool is `faulted`.
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
from services.reward.plugins.app_limits import Guard, Limits, Refused
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
    limits: Limits | None = None,
) -> FastAPI:
    """`judge` scores; `options` are those that its function was started with."""
    limits = limits or Limits()
    guard, answers = Guard(token, limits), Answers()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await answers.close()

    async def score_all(samples: Sequence[Sample]) -> list[Scored | NotScored]:
        try:
            async with asyncio.timeout(limits.score_seconds):
                outcomes = await judge(samples)
        except TimeoutError:
            raise Refused(
                503,
                f"not scored within {limits.score_seconds:g} s; send fewer samples at a time",
                Retry_After="1",
            ) from None
        return [result_of(outcome, info) for outcome in outcomes]

    app = FastAPI(
        title="Trimaran reward plugin",
        version="1",
        description=f"Contract {CONTRACT}: scores completions over HTTP.",
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,  # their scripts would come from another host
        redoc_url=None,
    )
    probes = APIRouter(route_class=guard.route_class(open_to_all=True))
    routes = APIRouter(
        route_class=guard.route_class(),
        # For the schema; the guard has looked at the token before.
        dependencies=[] if token is None else [Security(HTTPBearer(auto_error=False))],
    )

    @probes.get("/v1/health", responses=problems(500, 503))
    async def health() -> Health:
        """Whether it can score."""
        return Health(status="ok")

    @routes.get("/v1/info", responses=problems(401, 500))
    async def describe() -> Info:
        """What it is, and which scores it gives."""
        return info

    @routes.post(
        "/v1/score",
        response_model=ScoreAnswer,
        responses=problems(401, 408, 413, 422, 500, 503)
        | problem_schema(409, "The idempotency key was used for another request."),
    )
    async def score(request: ScoreRequest) -> Response:
        """One result a sample, in their order."""
        _check_size(request.samples, info, limits)
        if request.options and request.options != dict(options or {}):
            raise Refused(
                422,
                "options: this server's function has the options that it was started with;"
                " leave them out here and start it with --option key=value",
            )

        async def make() -> Made:
            results = await score_all([sample_of(sample) for sample in request.samples])
            answer = ScoreAnswer(contract=CONTRACT, results=results)
            final = all(isinstance(result, Scored) for result in results)
            return Made(answer.model_dump_json(exclude_defaults=True).encode(), final)

        digest = hashlib.sha256(request.model_dump_json().encode()).digest()
        try:
            answer = await answers.get_or_make(request.idempotency_key, digest, make)
        except KeyReusedError:
            raise Refused(
                409, "idempotency_key: used for another request; give each request its own"
            ) from None
        return Response(answer, media_type="application/json")

    @routes.post("/get_reward", responses=problems(401, 408, 413, 422, 500, 503))
    async def get_reward(request: RewardQuery) -> Rewards:
        """OpenRLHF's form. It has numbers only, so a batch with a faulted item is a 503."""
        if len(request.query) > info.max_samples:
            raise _too_many(info)
        results = await score_all(query_samples(request))
        scores = [result.score for result in results if isinstance(result, Scored)]
        failed = [result.faulted for result in results if isinstance(result, NotScored)]
        if failed:
            raise Refused(
                503,
                f"{len(failed)} of {len(results)} are faulted, and get_reward can only answer with"
                f" numbers; the first: {failed[0]}",
                Retry_After="1",
            )
        return Rewards(rewards=scores)

    app.include_router(probes)
    app.include_router(routes)
    add_handlers(app)
    return app


def _check_size(samples: Sequence[PluginSample], info: Info, limits: Limits) -> None:
    if len(samples) > info.max_samples:
        raise _too_many(info)
    if sum(sample.num_tokens for sample in samples) > limits.max_tokens:
        raise Refused(
            413, f"num_tokens: more than {limits.max_tokens:,} in all; send fewer samples at a time"
        )


def _too_many(info: Info) -> Refused:
    return Refused(413, f"too many samples; one request may have {info.max_samples}")
