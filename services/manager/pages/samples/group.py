"""One completion of a group with its tokens, and the images of its prompt: what the ledger's payload holds."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from services.manager.pages.route import page_router
from services.manager.pages.run.tabs import render_tab
from services.manager.pages.samples.tokens import MAX_TOKENS, sequences, show_tokens
from services.manager.pages.samples.vocabulary import Vocabulary, read_vocabulary, text_of_all
from services.manager.pages.samples.words import conversation
from services.manager.pages.session import Visitor, visits
from trimaran.errors import NotFoundError
from trimaran.run.answers import RunEpisode
from trimaran.types import Faulted, ScoredGroup, images_in

PNG = b"\x89PNG\r\n\x1a\n"


def routes(runs: Any) -> APIRouter:
    router = page_router()
    read = lru_cache(maxsize=2)(read_vocabulary)  # some 30 MB each

    async def vocabulary(visitor: Visitor, run_id: str) -> Vocabulary | None:
        """None where the model's folder cannot be read on this machine."""
        config = await runs.config(visitor.client, run_id)
        path = Path(config["model"]["path"]) / "tokenizer.json"
        try:
            return await asyncio.to_thread(read, path)
        except (OSError, ValueError):
            return None

    @router.get("/runs/{run_id}/groups/{group}/{number}")
    async def completion(
        request: Request,
        run_id: str,
        group: int,
        number: int,
        visitor: Annotated[Visitor, visits("GetLedger")],
        sequence: Annotated[int, Query(ge=0)] = 0,
        page: Annotated[int, Query(ge=1)] = 1,
    ) -> Response:
        scored: ScoredGroup = await runs.scored_group(visitor.client, run_id, group)
        completions_G = scored.group.completions_G
        if not 0 <= number < len(completions_G):
            raise NotFoundError(f"group {group}: has {len(completions_G)} completions")
        chosen, verdict = completions_G[number], scored.verdicts_G[number]
        made = sequences(chosen)
        if sequence >= len(made):
            raise NotFoundError(f"sequence: the completion has {len(made)}")
        known = await vocabulary(visitor, run_id)
        tokens = show_tokens(made[sequence], known, page)
        values: dict[str, Any] = {
            "group": scored.group,
            "number": number,
            "completion": chosen,
            "verdict": verdict,
            "is_faulted": isinstance(verdict, Faulted),
            "said": conversation(RunEpisode.of(chosen)),
            "tokens": tokens,
            "sequence": sequence,
            "num_sequences": len(made),
            "page": page,
            "pages": -(-len(made[sequence].token_ids_T) // MAX_TOKENS),
            "has_texts": known is not None,
            "read": known and text_of_all(known, scored.group.prompt_token_ids[:MAX_TOKENS]),
        }
        name = "samples/completion.html"
        return await render_tab(request, runs, visitor, run_id, "samples", template=name, **values)

    @router.get("/runs/{run_id}/groups/{group}/images/{number}")
    async def image(
        run_id: str,
        group: int,
        number: int,
        visitor: Annotated[Visitor, visits("GetLedger")],
    ) -> Response:
        """An image of the prompt. Those that are prepared for a model are PNG files; another is not shown."""
        scored: ScoredGroup = await runs.scored_group(visitor.client, run_id, group)
        images = images_in(scored.group.prompt.messages)
        if not 0 <= number < len(images) or not images[number].startswith(PNG):
            raise NotFoundError(f"group {group}: has no such image")
        return Response(images[number], media_type="image/png")

    return router
