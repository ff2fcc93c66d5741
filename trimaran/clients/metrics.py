"""MetricsService: what a process counts."""

from __future__ import annotations

from typing import Any

from trimaran.clients.base import CONTROL_SECONDS, Client
from trimaran.v1 import metrics_pb2, metrics_pb2_grpc
from trimaran.wire import rpc


class MetricsClient(Client):
    """Asks any process of a run, or the manager.

    Example:
        async with MetricsClient("127.0.0.1:7004") as client:
            print(await client.get_metrics())
    """

    async def get_metrics(self, timeout: float = CONTROL_SECONDS) -> str:
        """In Prometheus' text format."""
        stub: Any = metrics_pb2_grpc.MetricsServiceStub(self._channel)
        answer = await rpc.call(stub.GetMetrics, metrics_pb2.GetMetricsRequest(), timeout)
        return answer.text
