"""The buttons of a run's head: each asks first, then does it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Form, Request
from fastapi.responses import Response

from services.manager.pages.frame import render
from services.manager.pages.route import page_router
from services.manager.pages.runs.actions import RunAction
from services.manager.pages.session import Visitor, visit_to_change
from trimaran.errors import TrimaranError
from trimaran.run.runs import Run
from trimaran.wire.http_problems import problem_of

IN_DIALOG = {"HX-Retarget": "#dialog", "HX-Reswap": "innerHTML"}


def _steers(request: Request, action: RunAction) -> Visitor:
    return visit_to_change(request, action.method)


Steering = Annotated[Visitor, Depends(_steers)]


def routes(runs: Any) -> APIRouter:
    router = page_router()

    @router.get("/runs/{run_id}/steer/{action}")
    async def ask(request: Request, run_id: str, action: RunAction, visitor: Steering) -> Response:
        run = await runs.get(visitor.client, run_id)
        return _question(request, run, action, run.replicas.min, run.replicas.max)

    @router.post("/runs/{run_id}/steer/{action}")
    async def steer(
        request: Request,
        run_id: str,
        action: RunAction,
        visitor: Steering,
        min_replicas: Annotated[int, Form()] = 0,
        max_replicas: Annotated[int, Form()] = 0,
    ) -> Response:
        run: Run = await runs.get(visitor.client, run_id)
        try:
            match action:
                case RunAction.DELETE:
                    await runs.delete(visitor.client, run_id)
                    return Response(headers={"HX-Redirect": "/runs"})
                case RunAction.SCALE:
                    run = await runs.scale(visitor.client, run_id, min_replicas, max_replicas)
                case _:
                    run = await getattr(runs, action)(visitor.client, run_id)
        except TrimaranError as error:
            return _question(request, run, action, min_replicas, max_replicas, error)
        return render(request, "run/_head.html", visitor=visitor, run=run)

    return router


def _question(
    request: Request,
    run: Run,
    action: RunAction,
    least: int,
    most: int,
    error: TrimaranError | None = None,
) -> Response:
    """What the dialog shows: what will happen, and why it could not."""
    problem = problem_of(error) if error else None
    return render(
        request,
        "runs/_confirm.html",
        status=problem.status if problem else 200,
        headers=IN_DIALOG,
        run=run,
        action=action,
        least=least,
        most=most,
        problem=problem.detail if problem else "",
    )
