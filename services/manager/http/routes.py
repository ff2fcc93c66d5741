"""RunService over HTTP: one method a path."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response, Security
from fastapi.responses import StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import JsonValue

from services.manager.http.events import server_sent
from services.manager.http.forms import MAX_INT32, LogNames, MetricRows, RunPage, Scale, Submission
from services.manager.http.problems import responses
from trimaran.errors import TrimaranError
from trimaran.run.answers import Checkpoint, LedgerAnswer, RunSamples
from trimaran.run.runs import EventKind, Run, RunState, metric_rows
from trimaran.wire.recheck import while_allowed

logger = logging.getLogger(__name__)

METHOD = "/trimaran.v1.RunService/{}"
_bearer = HTTPBearer(auto_error=False, description="Where the operator gave clients tokens.")


def _identify_again(
    request: Request,
    bearer: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)],
) -> Callable[[], Any]:
    """Says who asks, and may: as for the method of gRPC that the route is named after."""
    token = bearer.credentials if bearer else ""
    method = METHOD.format(request.scope["route"].name)
    return partial(request.app.state.identify, method, token)


IdentifyAgain = Annotated[Callable[[], Any], Depends(_identify_again)]
"""For streams: a token may be withdrawn."""


async def _identify(identify: IdentifyAgain) -> Any:
    return identify()


Client = Annotated[Any, Depends(_identify)]
RunId = Annotated[str, Path(max_length=200, description="As `GET /v1/runs` lists it.")]
Step = Annotated[int | None, Query(ge=0, le=MAX_INT32)]
States = Annotated[list[RunState], Query(description="Only these; may be repeated.")]
TEXT = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
EVENTS = {
    200: {
        "description": "Each event with its sequence number as `id`, its kind as `event`, and as"
        " `data` a RunEvent in JSON",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    },
    204: {"description": "The run has ended, and there is nothing behind `after`."},
}


class RunRoutes:
    """`runs`: what the gRPC service asks, too."""

    def __init__(self, runs: Any, heartbeat_seconds: float, identify_seconds: float) -> None:
        """`identify_seconds`: after which the client of a stream is identified again."""
        self._runs, self._heartbeat_seconds = runs, heartbeat_seconds
        self._identify_seconds = identify_seconds

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/runs", tags=["runs"])

        def add(verb: str, path: str, name: str, handler: Callable[..., Any], **more: Any) -> None:
            known = (404,) if "{run_id}" in path else ()
            errors = responses(401, 403, *known, 409, 413, 422, 429, 500, 503, 504)
            more["responses"] = errors | more.get("responses", {})
            words = {"summary": name, "operation_id": handler.__name__}
            router.add_api_route(path, handler, methods=[verb], name=name, **words, **more)

        add("GET", "", "ListRuns", self.list_runs)
        add("POST", "", "CreateRun", self.create_run, status_code=201)
        add("GET", "/{run_id}", "GetRun", self.get_run)
        add("DELETE", "/{run_id}", "DeleteRun", self.delete_run, status_code=204)
        add("POST", "/{run_id}/pause", "PauseRun", self.pause_run)
        add("POST", "/{run_id}/resume", "ResumeRun", self.resume_run)
        add("POST", "/{run_id}/cancel", "CancelRun", self.cancel_run)
        add("POST", "/{run_id}/scale", "ScaleRun", self.scale_run)
        plain: dict[str, Any] = {"response_class": Response}
        add("GET", "/{run_id}/config", "GetRun", self.get_config)
        add("GET", "/{run_id}/metrics", "WatchRun", self.get_metrics)
        add("GET", "/{run_id}/events", "WatchRun", self.watch_run, responses=EVENTS, **plain)
        add("GET", "/{run_id}/checkpoints", "ListCheckpoints", self.list_checkpoints)
        add("GET", "/{run_id}/samples", "GetSamples", self.get_samples)
        add("GET", "/{run_id}/logs", "GetLogs", self.list_logs)
        add("GET", "/{run_id}/logs/{process}", "GetLogs", self.get_logs, responses=TEXT, **plain)
        add("GET", "/{run_id}/ledger", "GetLedger", self.verify_ledger)
        add("GET", "/{run_id}/ledger/groups/{group}", "GetLedger", self.get_group)
        return router

    async def list_runs(
        self,
        client: Client,
        state: States = [],  # noqa: B006  FastAPI copies it
        owner: Annotated[str, Query(max_length=200)] = "",
        page_size: Annotated[int, Query(ge=1, le=1000)] = 100,
        page_token: Annotated[str, Query(max_length=1000)] = "",
    ) -> RunPage:
        """Runs, newest first, a page at a time."""
        runs, following = await self._runs.list(client, state, owner, page_size, page_token)
        return RunPage(runs=list(runs), next_page_token=following)

    async def create_run(self, client: Client, request: Submission, response: Response) -> Run:
        """Queues a run. With the same `request_id` twice it is one run."""
        config = request.config
        text = config if isinstance(config, str) else json.dumps(config)  # JSON is YAML
        request_id = request.request_id or uuid.uuid4().hex
        run = await self._runs.create(client, request_id, text, request.overrides, request.priority)
        response.headers["Location"] = f"/v1/runs/{quote(run.run_id)}"
        return run

    async def get_run(self, client: Client, run_id: RunId) -> Run:
        """The state of the run."""
        return await self._runs.get(client, run_id)

    async def get_config(self, client: Client, run_id: RunId) -> dict[str, JsonValue]:
        """The run's whole configuration, with its overrides and the defaults."""
        return dict(await self._runs.config(client, run_id))

    async def get_metrics(self, client: Client, run_id: RunId) -> MetricRows:
        """A row for each step and each validation so far, as far back as events are kept."""
        events = [event async for event in self._runs.events(client, run_id, 0, follow=False)]
        missed = [event.text for event in events if event.kind is EventKind.MISSED]
        return MetricRows(rows=metric_rows(events), missed="; ".join(missed))

    async def delete_run(self, client: Client, run_id: RunId) -> None:
        """Removes an ended run's records and folder. Nothing brings them back."""
        await self._runs.delete(client, run_id)

    async def pause_run(self, client: Client, run_id: RunId) -> Run:
        """After the step under way the run saves a checkpoint, and its processes end."""
        return await self._runs.pause(client, run_id)

    async def resume_run(self, client: Client, run_id: RunId) -> Run:
        """A run that is paused, cancelled or failed is queued again, and goes on from its ledger."""
        return await self._runs.resume(client, run_id)

    async def cancel_run(self, client: Client, run_id: RunId) -> Run:
        """The run ends once the batch that trains is live, with its checkpoint and summary. It waits for no other."""
        return await self._runs.cancel(client, run_id)

    async def scale_run(self, client: Client, run_id: RunId, scale: Scale) -> Run:
        """How many replicas the run may have, while it runs or waits."""
        return await self._runs.scale(client, run_id, scale.min_replicas, scale.max_replicas)

    async def watch_run(
        self,
        client: Client,
        identify: IdentifyAgain,
        run_id: RunId,
        after: Annotated[
            int, Query(ge=0, le=2**63 - 1, description="A sequence number; 0: all events.")
        ] = 0,
        until_now: Annotated[
            bool, Query(description="End behind the events that there are now.")
        ] = False,
        last_event_id: Annotated[
            str, Header(pattern=r"^\d{0,18}$", description="Wins over `after`.")
        ] = "",
    ) -> Response:
        """Server-sent events, until the run ends; also of runs that have ended."""
        after = int(last_event_id or after)
        run = await self._runs.get(client, run_id)
        events = self._runs.events(client, run_id, after, follow=not until_now)
        if run.state.has_ended:
            first = await anext(events, None)
            if first is None:
                return Response(status_code=204)  # a browser that comes back stays away then
            events = _with_first(first, events)
        events = while_allowed(events, identify, self._identify_seconds)
        return StreamingResponse(
            server_sent(events, self._heartbeat_seconds),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    async def list_checkpoints(self, client: Client, run_id: RunId) -> list[Checkpoint]:
        """Those that were saved; `kept` ones are still there."""
        return list(await self._runs.checkpoints(client, run_id))

    async def get_samples(
        self,
        client: Client,
        run_id: RunId,
        validation_step: Step = None,
        trained_step: Step = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 20,
        offset: Annotated[int, Query(ge=0, le=MAX_INT32, description="So many are left out.")] = 0,
    ) -> RunSamples:
        """Prompts, answers and rewards of a validation, or of a trained step; of the last validation
        where none is named."""
        steps = validation_step, trained_step
        return await self._runs.samples(client, run_id, *steps, limit, offset)

    async def list_logs(self, client: Client, run_id: RunId) -> LogNames:
        """Which processes of the run have a log."""
        return LogNames(processes=list(await self._runs.log_names(client, run_id)))

    async def get_logs(
        self,
        client: Client,
        identify: IdentifyAgain,
        run_id: RunId,
        process: Annotated[str, Path(max_length=200, description="For example `rollout-0`.")],
        lines: Annotated[int, Query(ge=1, le=10000, description="From the end.")] = 100,
        follow: Annotated[bool, Query(description="And what follows, until the run ends.")] = False,
    ) -> Response:
        """The end of a process's log, as text."""
        parts = self._runs.logs(client, run_id, process, lines, follow)
        first = await anext(parts)  # what is wrong with the request is said before the answer

        async def text() -> AsyncIterator[str]:
            yield "".join(f"{line}\n" for line in first.lines)
            try:
                async for part in while_allowed(parts, identify, self._identify_seconds):
                    yield "".join(f"{line}\n" for line in part.lines)
            except TrimaranError as error:
                logger.warning("a followed log ended: %s", error)
                yield f"trimaran: the log is not followed any more: {error}\n"

        return StreamingResponse(text(), media_type="text/plain; charset=utf-8")

    async def verify_ledger(self, client: Client, run_id: RunId) -> LedgerAnswer:
        """Whether the whole ledger is sound: its chain, its anchor, and that every group ended once."""
        return await self._runs.ledger_verify(client, run_id)

    async def get_group(
        self, client: Client, run_id: RunId, group: Annotated[int, Path(ge=0, le=2**63 - 1)]
    ) -> LedgerAnswer:
        """The life of a group: who made it, what it scored, in which step it trained."""
        return await self._runs.ledger_group(client, run_id, group)


async def _with_first(first: Any, rest: AsyncIterator[Any]) -> AsyncIterator[Any]:
    yield first
    async for item in rest:
        yield item
