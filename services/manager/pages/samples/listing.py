"""The samples of a step, by prompt, and one sample of a validation with all that is known of it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from services.manager.pages.route import page_router
from services.manager.pages.run.tabs import render_tab
from services.manager.pages.samples.query import ROWS, SamplesQuery
from services.manager.pages.samples.words import conversation, excerpt
from services.manager.pages.session import Visitor, visits
from trimaran.errors import NotFoundError
from trimaran.run.answers import RunSample, RunSamples
from trimaran.types import IMAGE_PLACE


def routes(runs: Any) -> APIRouter:
    router = page_router()

    @router.get("/runs/{run_id}/samples")
    async def samples(
        request: Request,
        run_id: str,
        visitor: Annotated[Visitor, visits("GetSamples")],
        query: Annotated[SamplesQuery, Query()],
    ) -> Response:
        validations, trained = await runs.sample_steps(visitor.client, run_id)
        query = query.settle(validations, trained)
        found = RunSamples(validations, trained, ())
        if query.step is not None:
            asked = {f"{query.of}_step": query.step, "limit": ROWS, "offset": query.offset}
            found = await runs.samples(visitor.client, run_id, **asked, choice=query.choice)
        values: dict[str, Any] = {
            "query": query,
            "found": found,
            "groups": list(_by_prompt(found.samples)),
            "steps": _around(trained if query.of == "trained" else validations, query.step),
            "pages": -(-found.num_samples // ROWS),
            "excerpt": excerpt,
        }
        name = "samples/list.html"
        return await render_tab(request, runs, visitor, run_id, "samples", template=name, **values)

    @router.get("/runs/{run_id}/samples/validation/{step}/{place}")
    async def sample(
        request: Request,
        run_id: str,
        step: int,
        place: int,
        visitor: Annotated[Visitor, visits("GetSamples")],
    ) -> Response:
        found = await _only(runs, visitor, run_id, step, place)
        sample = found.samples[0]
        values = {
            "sample": sample,
            "found": found,
            "said": conversation(sample.episode),
            "num_images": sample.prompt.count(IMAGE_PLACE),
        }
        name = "samples/one.html"
        return await render_tab(request, runs, visitor, run_id, "samples", template=name, **values)

    @router.get("/runs/{run_id}/samples/validation/{step}/{place}/images/{number}")
    async def image(
        run_id: str,
        step: int,
        place: int,
        number: int,
        visitor: Annotated[Visitor, visits("GetSamples")],
    ) -> Response:
        found = await _only(runs, visitor, run_id, step, place)
        prompt_id = found.samples[0].prompt_id
        images = await runs.question_images(visitor.client, run_id, prompt_id)
        if not 0 <= number < len(images):
            raise NotFoundError(f"prompt {prompt_id}: has {len(images)} images")
        return Response(images[number], media_type="image/png")

    return router


async def _only(runs: Any, visitor: Visitor, run_id: str, step: int, place: int) -> RunSamples:
    """One sample of a validation. Raises NotFoundError."""
    asked = {"validation_step": step, "limit": 1, "offset": place}
    found: RunSamples = await runs.samples(visitor.client, run_id, **asked)
    if not found.samples:
        raise NotFoundError(f"validation_step {step}: has {found.num_samples} samples")
    return found


def _by_prompt(samples: Iterable[RunSample]) -> Iterator[list[RunSample]]:
    """Answers to one prompt follow each other."""
    for _, group in groupby(
        samples, lambda one: (one.greedy, one.group, one.prompt_id, one.prompt)
    ):
        yield list(group)


def _around(steps: Sequence[int], step: int | None) -> dict[str, int | None]:
    """First, before, next and last step; None where it is the one that is shown."""
    if step is None:
        return {}
    before, behind = bisect_left(steps, step), bisect_right(steps, step)
    return {
        "first": steps[0] if before else None,
        "previous": steps[before - 1] if before else None,
        "next": steps[behind] if behind < len(steps) else None,
        "last": steps[-1] if behind < len(steps) else None,
    }
