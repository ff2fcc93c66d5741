"""The form that submits a run, empty or as a copy of another one."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Annotated, Any

import yaml
from fastapi import APIRouter, Form, Request
from fastapi.responses import RedirectResponse, Response

from services.manager.pages.frame import render
from services.manager.pages.route import page_router
from services.manager.pages.session import Visitor, changes
from trimaran.config import parse_config
from trimaran.errors import AlreadyExistsError, InputError, TrimaranError, UnauthenticatedError
from trimaran.wire.http_problems import problem_of


@dataclass(frozen=True, slots=True)
class _Draft:
    """What stands in the form."""

    config: str = ""
    overrides: str = ""
    priority: str = "0"
    request_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Sent twice by a double click, it is one run."""

    def asked(self) -> tuple[str, list[str], int]:
        lines = [line.strip() for line in self.overrides.splitlines()]
        try:
            priority = int(self.priority)
        except ValueError:
            raise InputError(f"priority: {self.priority!r} is not a whole number") from None
        return self.config, [line for line in lines if line], priority


def routes(runs: Any) -> APIRouter:
    router = page_router()

    @router.get("/runs/new")
    async def empty(
        request: Request, visitor: Annotated[Visitor, changes("CreateRun")], copy: str = ""
    ) -> Response:
        typed = await _copy(runs, visitor, copy) if copy else _Draft()
        return _show(request, visitor, typed, copy=copy)

    @router.post("/runs/new")
    async def submit(
        request: Request,
        visitor: Annotated[Visitor, changes("CreateRun")],
        config: Annotated[str, Form()],
        request_id: Annotated[str, Form()],
        overrides: Annotated[str, Form()] = "",
        priority: Annotated[str, Form()] = "0",
        only_check: Annotated[bool, Form()] = False,
    ) -> Response:
        typed = _Draft(config, overrides, priority, request_id)
        try:
            if only_check:
                await runs.check(visitor.client, *typed.asked())
                return _show(request, visitor, typed, is_checked=True)
            run = await runs.create(visitor.client, request_id, *typed.asked())
        except UnauthenticatedError:
            raise
        except TrimaranError as error:
            if isinstance(error, AlreadyExistsError):  # a form that was gone back to, and changed
                typed = _Draft(config, overrides, priority)
            return _show(request, visitor, typed, error)
        return RedirectResponse(f"/runs/{run.run_id}", 303)

    return router


async def _copy(runs: Any, visitor: Visitor, run_id: str) -> _Draft:
    """What differs from the defaults of this version."""
    run = await runs.get(visitor.client, run_id)
    tree = await runs.config(visitor.client, run_id)
    config = parse_config(tree, source=f"run {run_id}")
    changed = config.model_dump(mode="json", exclude_defaults=True)
    text = yaml.safe_dump(changed, sort_keys=False, allow_unicode=True)
    return _Draft(text, priority=str(run.priority))


def _show(
    request: Request,
    visitor: Visitor,
    typed: _Draft,
    error: TrimaranError | None = None,
    *,
    copy: str = "",
    is_checked: bool = False,
) -> Response:
    problem = problem_of(error) if error else None
    return render(
        request,
        "runs/new.html",
        status=problem.status if problem else 200,
        visitor=visitor,
        typed=typed,
        problem=problem.detail if problem else "",
        copy=copy,
        is_checked=is_checked,
    )
