"""A weight-sync service that reports what it was given, and records what it was asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trimaran.errors import InputError
from trimaran.types import PolicyVersion, Proof, VersionId, VersionRecord
from trimaran.v1 import weight_sync_pb2 as pb
from trimaran.v1 import weight_sync_pb2_grpc
from trimaran.wire import messages as wire
from trimaran.wire import rpc

RUN = "addition-20260101-120000"
NUM_BLOCKS = 8


def root_of(step: int) -> str:
    return f"{step + 10:032x}"


def proof(step: int, replica: str, num_loaded: int = 1, root: str = "", fault: str = "") -> Proof:
    return Proof(VersionId(0, step), replica, root or root_of(step), NUM_BLOCKS, num_loaded, fault)


def record(step: int, *proofs: Proof) -> VersionRecord:
    policy = PolicyVersion(RUN, VersionId(0, step), root_of(step))
    return VersionRecord(policy, NUM_BLOCKS, 2_500_000, 1_767_268_800.0 + step, proofs)


class FakeWeightSync(weight_sync_pb2_grpc.WeightSyncServiceServicer):
    """`after_verify`: what is listed once a verification has ended, if anything else."""

    def __init__(
        self,
        records: Sequence[VersionRecord] = (),
        verified: Sequence[Proof] = (),
        unroutable: dict[str, str] | None = None,
        after_verify: Sequence[VersionRecord] = (),
        run_id: str = RUN,
    ) -> None:
        self._records, self._verified = records, verified
        self._unroutable, self._after_verify = unroutable or {}, after_verify
        self._run_id = run_id
        self.asked: list[tuple[str, ...]] = []

    async def ListVersions(
        self, request: pb.ListVersionsRequest, context: Any
    ) -> pb.ListVersionsResponse:
        self._check(request.run_id)
        self.asked.append(("list",))
        records = self._records[: request.limit or None]
        return pb.ListVersionsResponse(
            versions=[wire.encode_version_record(record) for record in records]
        )

    async def VerifyReplicas(
        self, request: pb.VerifyReplicasRequest, context: Any
    ) -> pb.VerifyReplicasResponse:
        self._check(request.run_id)
        self.asked.append(("verify", *request.names))
        for name in request.names:
            known = sorted({proof.replica for proof in self._verified} | set(self._unroutable))
            if name not in known:
                raise InputError(f"replica {name!r} has not registered; known: {', '.join(known)}")
        self._records = self._after_verify or self._records
        proofs = [p for p in self._verified if not request.names or p.replica in request.names]
        return pb.VerifyReplicasResponse(
            proofs=[wire.encode_proof(proof) for proof in proofs], unroutable=self._unroutable
        )

    def _check(self, run_id: str) -> None:
        if run_id not in ("", self._run_id):
            raise InputError(f"run {run_id!r} is not served here; this is {self._run_id!r}")


async def serve(service: FakeWeightSync, address: str) -> rpc.Server:
    add = weight_sync_pb2_grpc.add_WeightSyncServiceServicer_to_server
    server = rpc.Server(address, [rpc.service(pb.DESCRIPTOR, add, service)])
    await server.start()
    return server
