"""FollowerService: what a replica's first process asks of its further hosts."""

from __future__ import annotations

from collections.abc import Sequence

from trimaran.clients.base import CONTROL_SECONDS, TRANSFER_MARGIN_SECONDS, Client
from trimaran.run.directory import ProcessPlace
from trimaran.trust.access import NO_TRUST, Trust
from trimaran.types import Manifest, PolicyVersion, Source, Staged, TransferLimits, VersionId
from trimaran.v1 import follower_pb2 as pb
from trimaran.v1 import follower_pb2_grpc
from trimaran.wire import messages as wire
from trimaran.wire import rpc


class FollowerClient(Client):
    """Speaks to one follower, as a member of one meeting of the replica's hosts.

    Example:
        async with FollowerClient("follower-0", directory.place("follower-0"), meeting) as follower:
            staged, path = await follower.stage(version, manifest, sources, limits, attempt)
    """

    _service = follower_pb2_grpc.FollowerServiceStub

    def __init__(
        self, name: str, address: str | ProcessPlace, meeting: str, trust: Trust = NO_TRUST
    ) -> None:
        super().__init__(address, trust)
        self.name = name
        self._meeting = meeting

    async def stage(
        self,
        version: PolicyVersion,
        manifest: Manifest,
        sources: Sequence[Source],
        limits: TransferLimits,
        attempt: str,
    ) -> tuple[Staged, str]:
        """What lies in its shadow, every block verified, and the path under which the workers of its
        host map it. Raises OutOfOrderError where it lacks the base of a delta."""
        request = pb.StageFollowerRequest(
            meeting=self._meeting,
            version=wire.encode_policy(version),
            manifest=wire.encode_manifest(manifest),
            sources=[wire.encode_source(source) for source in sources],
            limits=wire.encode_limits(limits),
            attempt=attempt,
        )
        deadline = limits.timeout + TRANSFER_MARGIN_SECONDS
        answer: pb.StageFollowerResponse = await rpc.call(
            self._stub.StageFollower, request, deadline
        )
        return wire.decode_staged(answer.staged), answer.path

    async def keep(self, version: VersionId) -> None:
        """The engine has loaded what is staged."""
        request = pb.KeepFollowerRequest(
            meeting=self._meeting, version=wire.encode_version(version)
        )
        await rpc.call(self._stub.KeepFollower, request, CONTROL_SECONDS)

    async def abort(self, version: VersionId, attempt: str) -> None:
        """Discards what the `stage` with this `attempt` brought, or is bringing."""
        request = pb.AbortFollowerRequest(
            meeting=self._meeting, version=wire.encode_version(version), attempt=attempt
        )
        await rpc.call(self._stub.AbortFollower, request, CONTROL_SECONDS)
