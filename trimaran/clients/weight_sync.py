"""WeightSyncService: which replicas there are, and which version is live on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trimaran.clients.base import CONTROL_SECONDS, CallerClient
from trimaran.types import (
    Peer,
    PolicyVersion,
    Proof,
    Replica,
    Routing,
    VersionId,
    VersionRecord,
)
from trimaran.v1 import weight_sync_pb2 as pb
from trimaran.v1 import weight_sync_pb2_grpc
from trimaran.wire import messages as wire
from trimaran.wire import rpc


@dataclass(frozen=True, slots=True)
class Registration:
    """The answer to a replica that registers.

    Example:
        registration = await weight_sync.register_replica(replica, peer, timeout=10.0)
        await asyncio.sleep(registration.heartbeat_seconds)
    """

    incarnation: int
    """Counts the name's registrations; stands in every heartbeat."""
    heartbeat_seconds: float
    """How often to give a sign of life."""


class WeightSyncClient(CallerClient):
    """Speaks to weight sync.

    Example:
        async with WeightSyncClient("127.0.0.1:7004", Caller("addition-1", epoch=2)) as client:
            routing = await client.get_routing()
            print(routing.live, [replica.name for replica in routing.routable])
    """

    _service = weight_sync_pb2_grpc.WeightSyncServiceStub

    async def register_replica(self, replica: Replica, peer: Peer, timeout: float) -> Registration:
        request = pb.RegisterReplicaRequest(
            run_id=self._caller.run_id,
            replica=wire.encode_replica(replica),
            peer=wire.encode_peer(peer),
        )
        answer: pb.RegisterReplicaResponse = await rpc.call(
            self._stub.RegisterReplica, request, timeout
        )
        return Registration(answer.incarnation, answer.heartbeat_seconds)

    async def deregister_replica(self, name: str, incarnation: int, timeout: float) -> None:
        """The replica is about to end: no request shall be sent to it any more."""
        request = pb.DeregisterReplicaRequest(
            run_id=self._caller.run_id, name=name, incarnation=incarnation
        )
        await rpc.call(self._stub.DeregisterReplica, request, timeout)

    async def heartbeat(
        self, name: str, incarnation: int, live: PolicyVersion | None, timeout: float
    ) -> bool:
        """False when weight sync does not know this incarnation: register again."""
        request = pb.HeartbeatRequest(
            run_id=self._caller.run_id,
            name=name,
            incarnation=incarnation,
            live=wire.encode_policy(live) if live else None,
        )
        answer: pb.HeartbeatResponse = await rpc.call(self._stub.Heartbeat, request, timeout)
        return answer.known

    async def publish_version(
        self, version: PolicyVersion, timeout: float
    ) -> tuple[Routing, dict[str, float]]:
        """Idempotent by version. Returns once the version is live on the routable replicas."""
        request = pb.PublishVersionRequest(caller=self._caller, version=wire.encode_policy(version))
        answer: pb.PublishVersionResponse = await rpc.call(
            self._stub.PublishVersion, request, timeout
        )
        return wire.decode_routing(answer.routing), dict(answer.metrics)

    async def sleep_replicas(self, timeout: float) -> None:
        """Idempotent. Returns once all replicas sleep that answer; the next publication wakes them."""
        request = pb.SleepReplicasRequest(caller=self._caller)
        await rpc.call(self._stub.SleepReplicas, request, timeout)

    async def get_routing(self) -> Routing:
        request = pb.GetRoutingRequest(caller=self._caller)
        answer: pb.GetRoutingResponse = await rpc.call(
            self._stub.GetRouting, request, CONTROL_SECONDS
        )
        return wire.decode_routing(answer.routing)

    async def report_replica(self, name: str, reason: str) -> None:
        request = pb.ReportReplicaRequest(caller=self._caller, name=name, reason=reason)
        await rpc.call(self._stub.ReportReplica, request, CONTROL_SECONDS)

    async def list_proofs(self, versions: Sequence[VersionId]) -> tuple[Proof, ...]:
        request = pb.ListProofsRequest(
            caller=self._caller, versions=[wire.encode_version(version) for version in versions]
        )
        answer: pb.ListProofsResponse = await rpc.call(
            self._stub.ListProofs, request, CONTROL_SECONDS
        )
        return tuple(wire.decode_proof(proof) for proof in answer.proofs)

    async def list_faults(self, after: int = 0) -> tuple[Proof, ...]:
        """Proofs with a fault, in the order in which it was found, without the first `after`."""
        request = pb.ListFaultsRequest(caller=self._caller, after=after)
        answer: pb.ListFaultsResponse = await rpc.call(
            self._stub.ListFaults, request, CONTROL_SECONDS
        )
        return tuple(wire.decode_proof(proof) for proof in answer.proofs)

    async def list_versions(self, limit: int = 0) -> tuple[VersionRecord, ...]:
        """Committed versions, newest first; `limit` 0 means all."""
        request = pb.ListVersionsRequest(run_id=self._caller.run_id, limit=limit)
        answer: pb.ListVersionsResponse = await rpc.call(
            self._stub.ListVersions, request, CONTROL_SECONDS
        )
        return tuple(wire.decode_version_record(record) for record in answer.versions)

    async def verify_replicas(
        self, names: Sequence[str], timeout: float
    ) -> tuple[tuple[Proof, ...], dict[str, str]]:
        """Proofs after a full read-back, and why a replica that was asked for has none."""
        request = pb.VerifyReplicasRequest(run_id=self._caller.run_id, names=names)
        answer: pb.VerifyReplicasResponse = await rpc.call(
            self._stub.VerifyReplicas, request, timeout
        )
        return tuple(wire.decode_proof(proof) for proof in answer.proofs), dict(answer.unroutable)
