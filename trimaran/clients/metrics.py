"""MetricsService: what a process counts."""

from __future__ import annotations

from trimaran.clients.base import CONTROL_SECONDS, Client
from trimaran.v1 import metrics_pb2, metrics_pb2_grpc
from trimaran.wire import rpc


class MetricsClient(Client):
    """Asks any process of a run, or the manager.

    Example:
        async with MetricsClient("127.0.0.1:7004") as client:
            print(await client.get_metrics())
    """

    _service = metrics_pb2_grpc.MetricsServiceStub

    async def get_metrics(self) -> str:
        """In Prometheus' text format."""
        request = metrics_pb2.GetMetricsRequest()
        return (await rpc.call(self._stub.GetMetrics, request, CONTROL_SECONDS)).text
