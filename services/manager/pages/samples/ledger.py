"""A group's life as the ledger has it, and the check of the whole ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from services.manager.pages.frame import render
from services.manager.pages.route import page_router
from services.manager.pages.run.tabs import render_tab
from services.manager.pages.session import Visitor, visits
from trimaran.run.answers import LedgerAnswer

TEXT = 500
"""Characters of a line: causes quote what failed."""


def routes(runs: Any) -> APIRouter:
    router = page_router()

    @router.get("/runs/{run_id}/ledger")
    async def ledger(
        request: Request,
        run_id: str,
        visitor: Annotated[Visitor, visits("GetLedger")],
        group: Annotated[str, Query(pattern=r"^\s*\d{0,18}\s*$")] = "",
    ) -> Response:
        number = int(group) if group.strip() else None
        values: dict[str, Any] = {
            "number": number,
            "lines": (),
            "answer": None,
            "has_tokens": False,
        }
        if number is not None:
            answer: LedgerAnswer = await runs.ledger_group(visitor.client, run_id, number)
            judged = answer.facts.get("completions", ())
            values |= {
                "lines": indented(answer.lines),
                "answer": answer,
                # Who judged stands in the payload alone, beside the tokens.
                "has_tokens": any("fault" in one or "indigestible" in one for one in judged),
            }
        return await render_tab(
            request, runs, visitor, run_id, "ledger", template="samples/ledger.html", **values
        )

    @router.get("/runs/{run_id}/ledger/check")
    async def check(
        request: Request, run_id: str, visitor: Annotated[Visitor, visits("GetLedger")]
    ) -> Response:
        answer = await runs.ledger_verify(visitor.client, run_id)
        return render(request, "samples/_check.html", answer=answer)

    return router


def indented(lines: Sequence[str]) -> list[tuple[int, str]]:
    """(depth, text) of each line of `trimaran ledger show`.

    Example: indented(["attempt 1: issued", "  scored"]) == [(0, "attempt 1: issued"), (1, "scored")]
    """
    return [((len(line) - len(line.lstrip(" "))) // 2, line.strip()) for line in lines]
