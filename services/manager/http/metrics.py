"""What Prometheus asks of the manager: its own numbers, those of each process, and where they are."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel

from services.manager.http.problems import responses
from services.manager.http.routes import Client, RunId
from trimaran.run.runs import ACTIVE
from trimaran.telemetry.exposition import CONTENT_TYPE, Exposition, process_labels

PAGE = 1000
TEXT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}}
}


class TargetGroup(BaseModel):
    """As Prometheus' http_sd takes it."""

    targets: list[str]
    labels: dict[str, str]


class MetricsRoutes:
    """`runs`: what the gRPC service asks, too. `own`: the manager's numbers."""

    def __init__(self, runs: Any, own: Exposition) -> None:
        self._runs, self._own = runs, own

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/metrics", tags=["metrics"])
        refused = responses(401, 403, 413, 500, 503)
        text: dict[str, Any] = {"response_class": Response, "responses": refused | TEXT}
        # The names decide who may ask. The manager's own numbers are an operator's, as by MetricsService;
        # the rest is for whoever may list runs, and may read the run.
        router.get("", name="GetMetrics", **text)(self.own)
        router.get("/targets", name="ListRuns", responses=refused)(self.targets)
        text["responses"] |= responses(404, 422, 504)
        router.get("/runs/{run_id}/{process}", name="GetRun", **text)(self.process)
        return router

    async def own(self, client: Client) -> Response:
        """The manager's own numbers, in Prometheus' text format."""
        return Response(self._own.text(), media_type=CONTENT_TYPE)

    async def targets(self, client: Client, request: Request) -> list[TargetGroup]:
        """Every process of every run that has processes, for Prometheus' http_sd."""
        found: list[TargetGroup] = []
        token = ""
        while True:
            runs, token = await self._runs.list(client, sorted(ACTIVE), "", PAGE, token)
            for run in runs:
                found += [
                    TargetGroup(
                        targets=[request.headers["host"]],
                        labels={
                            "__metrics_path__": f"/metrics/runs/{run.run_id}/{process}",
                            "owner": run.owner,
                            **process_labels(run.run_id, process),
                        },
                    )
                    for process in sorted(await self._runs.processes(client, run.run_id))
                ]
            if not token:
                return found

    async def process(
        self,
        client: Client,
        run_id: RunId,
        process: Annotated[str, Path(max_length=200, description="For example `rollout-0`.")],
    ) -> Response:
        """What a process of the run tells, in Prometheus' text format."""
        text = await self._runs.process_metrics(client, run_id, process)
        return Response(text, media_type=CONTENT_TYPE)
