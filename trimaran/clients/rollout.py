"""RolloutService: generate, and hand a replica its weights."""

from __future__ import annotations

from collections.abc import Sequence

from trimaran import errors
from trimaran.clients.assembly import GroupAssembly
from trimaran.clients.base import CONTROL_SECONDS, TRANSFER_MARGIN_SECONDS, CallerClient
from trimaran.types import (
    Group,
    Manifest,
    PolicyVersion,
    Prefix,
    Prompt,
    Ranges,
    Sampling,
    Source,
    Staged,
    TransferLimits,
    VersionId,
)
from trimaran.v1 import rollout_pb2 as pb
from trimaran.v1 import rollout_pb2_grpc
from trimaran.wire import messages as wire
from trimaran.wire import rpc


class RolloutClient(CallerClient):
    """Speaks to one replica.

    Example:
        async with RolloutClient("127.0.0.1:7001", Caller("addition-1", epoch=2)) as client:
            sampling, assembly = Sampling(1.0, max_tokens=24, num_samples=8), GroupAssembly(8)
            group = await client.generate(17, 1, prompt, sampling, version, assembly, 60.0)
    """

    _service = rollout_pb2_grpc.RolloutServiceStub

    async def generate(
        self,
        number: int,
        attempt: int,
        prompt: Prompt,
        sampling: Sampling,
        min_version: VersionId,
        assembly: GroupAssembly,
        idle_timeout: float,
        prefix: Prefix | None = None,
    ) -> Group:
        """Generates what `assembly` still lacks, on weights that are `min_version` or newer.

        `prefix`: given for a turn of an episode: what it goes on from. `prompt.messages` are
        then those that follow it, the group's `prompt_token_ids` what they became, and `assembly.message`
        is what the policy said. Silence of `idle_timeout` seconds raises DeadlineError. After an error `assembly` keeps what
        had arrived: pass it to another replica's client, which goes on from there.
        """
        if assembly.complete:  # the stream before this one broke between its last token and its end
            return assembly.group(number, attempt, prompt)
        continuations = assembly.unfinished() if assembly.started else {}
        request = pb.GenerateRequest(
            caller=self._caller,
            number=number,
            attempt=attempt,
            prompt=wire.encode_prompt(prompt),
            sampling=wire.encode_sampling(sampling),
            continuations=[
                pb.Continuation(index=index, token_ids=wire.encode_token_ids(partial.token_ids_T))
                for index, partial in continuations.items()
            ],
            min_version=wire.encode_version(min_version),
            turn=_turn(prefix) if prefix else None,
        )
        async for response in rpc.stream(self._stub.Generate, request, idle_timeout):
            assembly.take(response)
        if not assembly.complete:
            raise errors.UnavailableError(f"{self.address}: the stream ended before its group")
        return assembly.group(number, attempt, prompt)

    async def stage_weights(
        self,
        version: PolicyVersion,
        manifest: Manifest,
        sources: Sequence[Source],
        limits: TransferLimits,
        attempt: str,
        keep_live: bool = False,
    ) -> Staged:
        """Fills the replica's shadow; every block is verified when this returns.

        `attempt` names this try. `keep_live`: the live version's copy stays beside the new one.
        """
        request = pb.StageWeightsRequest(
            caller=self._caller,
            version=wire.encode_policy(version),
            manifest=wire.encode_manifest(manifest),
            sources=[wire.encode_source(source) for source in sources],
            limits=wire.encode_limits(limits),
            attempt=attempt,
            keep_live=keep_live,
        )
        deadline = limits.timeout + TRANSFER_MARGIN_SECONDS
        answer: pb.StageWeightsResponse = await rpc.call(self._stub.StageWeights, request, deadline)
        return wire.decode_staged(answer.staged)

    async def commit_weights(self, version: PolicyVersion, maker: str, timeout: float) -> float:
        """Returns the seconds for which generation was paused. `maker` is stamped on its tokens."""
        request = pb.CommitWeightsRequest(
            caller=self._caller, version=wire.encode_policy(version), maker=maker
        )
        answer: pb.CommitWeightsResponse = await rpc.call(
            self._stub.CommitWeights, request, timeout
        )
        return answer.pause_seconds

    async def sleep(self, timeout: float) -> None:
        """The replica leaves its devices to the trainer, until `commit_weights` wakes it."""
        await rpc.call(self._stub.Sleep, pb.SleepRequest(caller=self._caller), timeout)

    async def abort_weights(self, version: VersionId, attempt: str) -> None:
        """Discards what the `stage_weights` with this `attempt` brought, or is bringing."""
        request = pb.AbortWeightsRequest(
            caller=self._caller, version=wire.encode_version(version), attempt=attempt
        )
        await rpc.call(self._stub.AbortWeights, request, CONTROL_SECONDS)

    async def read_back(
        self, version: VersionId, blocks: Ranges, timeout: float
    ) -> tuple[str, ...]:
        """Digests of what the engine has loaded, one a block, in ascending order of the blocks.

        Raises OutOfOrderError when `version` is not the replica's live one.
        """
        request = pb.ReadBackRequest(
            caller=self._caller,
            version=wire.encode_version(version),
            blocks=wire.encode_ranges(blocks),
            timeout_seconds=timeout,
        )
        deadline = timeout + TRANSFER_MARGIN_SECONDS
        answer: pb.ReadBackResponse = await rpc.call(self._stub.ReadBack, request, deadline)
        return wire.decode_digests(answer.digests)


def _turn(prefix: Prefix) -> pb.TurnRequest:
    return pb.TurnRequest(
        prefix_token_ids=wire.encode_token_ids(prefix.token_ids), prefix_images=prefix.images
    )
