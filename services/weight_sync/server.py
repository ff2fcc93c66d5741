"""WeightSyncService: who is in the pool, which version is live, and making one live."""

from __future__ import annotations

import asyncio
from typing import Any

from services.weight_sync.coordinator import Coordinator
from services.weight_sync.ledger import VersionLedger
from trimaran.clients import RolloutClient, TrainerClient
from trimaran.config import RunConfig
from trimaran.errors import InputError
from trimaran.run.context import RunContext
from trimaran.run.directory import Directory, named_addresses
from trimaran.store import Store, open_store
from trimaran.telemetry.exposition import Exposition
from trimaran.telemetry.series import (
    SYNC_LINEAGE,
    SYNC_PAUSE,
    SYNC_ROUTABLE,
    SYNC_STEP,
    SYNC_UNROUTABLE,
)
from trimaran.trust.access import NO_TRUST, Trust
from trimaran.types import Routing, VersionId
from trimaran.v1 import weight_sync_pb2 as pb
from trimaran.v1 import weight_sync_pb2_grpc
from trimaran.wire import messages as wire
from trimaran.wire import rpc


class WeightSyncServicer(weight_sync_pb2_grpc.WeightSyncServiceServicer):
    def __init__(self, coordinator: Coordinator, trust: Trust = NO_TRUST) -> None:
        self._coordinator, self._trust = coordinator, trust

    async def RegisterReplica(
        self, request: pb.RegisterReplicaRequest, context: Any
    ) -> pb.RegisterReplicaResponse:
        replica = wire.decode_replica(request.replica)
        self._trust.check_address(replica.address)
        peer = wire.decode_peer(request.peer)
        registration = await self._coordinator.register(request.run_id, replica, peer)
        return pb.RegisterReplicaResponse(
            incarnation=registration.incarnation, heartbeat_seconds=registration.heartbeat_seconds
        )

    async def DeregisterReplica(
        self, request: pb.DeregisterReplicaRequest, context: Any
    ) -> pb.DeregisterReplicaResponse:
        await self._coordinator.deregister(request.run_id, request.name, request.incarnation)
        return pb.DeregisterReplicaResponse()

    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Any) -> pb.HeartbeatResponse:
        live = wire.decode_policy(request.live) if request.HasField("live") else None
        known = await self._coordinator.heartbeat(
            request.run_id, request.name, request.incarnation, live
        )
        return pb.HeartbeatResponse(known=known)

    async def PublishVersion(
        self, request: pb.PublishVersionRequest, context: Any
    ) -> pb.PublishVersionResponse:
        caller, version = wire.decode_caller(request.caller), wire.decode_policy(request.version)
        routing, metrics = await self._coordinator.publish(caller, version)
        return pb.PublishVersionResponse(routing=wire.encode_routing(routing), metrics=metrics)

    async def SleepReplicas(
        self, request: pb.SleepReplicasRequest, context: Any
    ) -> pb.SleepReplicasResponse:
        await self._coordinator.sleep(wire.decode_caller(request.caller))
        return pb.SleepReplicasResponse()

    async def GetRouting(
        self, request: pb.GetRoutingRequest, context: Any
    ) -> pb.GetRoutingResponse:
        await self._coordinator.meet(wire.decode_caller(request.caller))
        return pb.GetRoutingResponse(routing=wire.encode_routing(self._coordinator.routing()))

    async def ReportReplica(
        self, request: pb.ReportReplicaRequest, context: Any
    ) -> pb.ReportReplicaResponse:
        await self._coordinator.meet(wire.decode_caller(request.caller))
        await self._coordinator.report(request.name, request.reason)
        return pb.ReportReplicaResponse()

    async def ListProofs(
        self, request: pb.ListProofsRequest, context: Any
    ) -> pb.ListProofsResponse:
        await self._coordinator.meet(wire.decode_caller(request.caller))
        versions = [wire.decode_version(version) for version in request.versions]
        proofs = await self._coordinator.list_proofs(versions)
        return pb.ListProofsResponse(proofs=[wire.encode_proof(proof) for proof in proofs])

    async def ListFaults(
        self, request: pb.ListFaultsRequest, context: Any
    ) -> pb.ListFaultsResponse:
        await self._coordinator.meet(wire.decode_caller(request.caller))
        proofs = await self._coordinator.list_faults(request.after)
        return pb.ListFaultsResponse(proofs=[wire.encode_proof(proof) for proof in proofs])

    async def ListVersions(
        self, request: pb.ListVersionsRequest, context: Any
    ) -> pb.ListVersionsResponse:
        self._coordinator.check_question(request.run_id)
        records = await self._coordinator.list_versions(request.limit)
        return pb.ListVersionsResponse(
            versions=[wire.encode_version_record(record) for record in records]
        )

    async def VerifyReplicas(
        self, request: pb.VerifyReplicasRequest, context: Any
    ) -> pb.VerifyReplicasResponse:
        self._coordinator.check_question(request.run_id)
        proofs, unroutable = await self._coordinator.verify(request.names)
        return pb.VerifyReplicasResponse(
            proofs=[wire.encode_proof(proof) for proof in proofs], unroutable=unroutable
        )


async def serve(config: RunConfig, run: RunContext, index: int = 0) -> None:
    """Until cancelled."""
    address = config.endpoints.weight_sync
    if address is None:
        raise InputError("endpoints.weight_sync: missing; give host:port")
    store = await open_store(run.store_url)
    directory = Directory(store, run.run_id, named_addresses(config))
    senders = [directory.place(f"trainer-{one.rank}") for one in config.trainer.layout.senders]
    try:
        coordinator = Coordinator(
            run.run_id,
            config.weight_sync,
            await VersionLedger.open(store, run.run_id),
            connect_senders=lambda caller: [
                TrainerClient(place, caller, run.trust) for place in senders
            ],
            connect_rollout=lambda replica, caller: RolloutClient(
                replica.address, caller, run.trust
            ),
            level=config.run.proof,
        )
        await _serve(address, coordinator, store, run.trust)
    finally:
        await store.close()


async def _serve(address: str, coordinator: Coordinator, store: Store, trust: Trust) -> None:
    add = weight_sync_pb2_grpc.add_WeightSyncServiceServicer_to_server
    service = rpc.service(pb.DESCRIPTOR, add, WeightSyncServicer(coordinator, trust))
    server = rpc.Server(address, [service], store.newest_epoch, trust)
    _show(server.metrics, coordinator)
    try:
        await coordinator.forget_gone()
        coordinator.start()
        await server.start()
        await asyncio.Event().wait()
    finally:
        await server.stop()
        await coordinator.close()


def count_unroutable(routing: Routing) -> dict[str, float]:
    """By why they may make no tokens now."""
    num_faulty = len(routing.faults)
    return {"faulty": num_faulty, "behind": len(routing.unroutable) - num_faulty}


def _show(metrics: Exposition, coordinator: Coordinator) -> None:
    def live() -> VersionId | None:
        policy = coordinator.routing().live
        return policy.version if policy else None

    metrics.show(SYNC_STEP, lambda: version.step if (version := live()) else None)
    metrics.show(SYNC_LINEAGE, lambda: version.lineage if (version := live()) else None)
    metrics.show(SYNC_ROUTABLE, lambda: len(coordinator.routing().routable))
    metrics.show(SYNC_UNROUTABLE, lambda: count_unroutable(coordinator.routing()))
    metrics.show(SYNC_PAUSE, lambda: coordinator.last_pause)
