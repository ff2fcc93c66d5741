"""A group that is put together from the streams of one or more replicas."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from trimaran import errors, wire
from trimaran.types import Completion, PartialCompletion, Segment
from trimaran.v1 import rollout_pb2 as pb


@dataclass(slots=True)
class _CompletionAssembly:
    token_ids_T: list[int] = field(default_factory=list[int])
    logprobs_T: list[float] = field(default_factory=list[float])
    segments: list[Segment] = field(default_factory=list[Segment])
    finished: Completion | None = None


class GroupAssembly:
    """Puts a group together from the streams of one or more replicas.

    After a stream broke, pass the same assembly to `generate` on another
    replica: unfinished completions go on from their prefix. A chunk with a
    log-probability that is not finite is not taken, and raises InternalError.

    Example:
        assembly = GroupAssembly(num_samples=8)
        try:
            group = await one.generate(17, 1, prompt, sampling, version, assembly, 60.0)
        except UnavailableError:  # what had arrived is in the assembly
            group = await other.generate(17, 1, prompt, sampling, version, assembly, 60.0)
    """

    def __init__(self, num_samples: int) -> None:
        self._completions_G = [_CompletionAssembly() for _ in range(num_samples)]
        self.prompt_token_ids: tuple[int, ...] = ()

    @property
    def started(self) -> bool:
        return bool(self.prompt_token_ids)

    @property
    def complete(self) -> bool:
        return all(completion.finished for completion in self._completions_G)

    def unfinished(self) -> dict[int, PartialCompletion]:
        return {
            index: PartialCompletion(tuple(c.token_ids_T), tuple(c.logprobs_T), tuple(c.segments))
            for index, c in enumerate(self._completions_G)
            if c.finished is None
        }

    def completions(self) -> tuple[Completion, ...]:
        """All of them; call when `complete`."""
        finished_G = [completion.finished for completion in self._completions_G]
        assert all(finished_G), "the group is not complete"
        return tuple(completion for completion in finished_G if completion)

    def take(self, event: pb.GenerateResponse) -> None:
        match event.WhichOneof("event"):
            case "opened":
                self.prompt_token_ids = wire.decode_token_ids(event.opened.prompt_token_ids)
            case "chunk":
                self._take_chunk(event.chunk)
            case "finished":
                self._take_finished(event.finished)
            case _:
                pass  # a sign of life

    def _take_chunk(self, chunk: pb.SegmentChunk) -> None:
        completion = self._completions_G[chunk.index]
        segment = wire.decode_segment(chunk.segment)
        assert segment.start == len(completion.token_ids_T), "a stream lost a segment"
        logprobs = wire.decode_logprobs(chunk.logprobs)
        for place, logprob in enumerate(logprobs, start=segment.start):
            if not math.isfinite(logprob):
                raise errors.InternalError(
                    f"{segment.replica} at version {segment.version}: the log-probability of token"
                    f" {place} of completion {chunk.index} is {logprob}"
                )
        token_ids = wire.decode_token_ids(chunk.token_ids)
        if not segment.end - segment.start == len(token_ids) == len(logprobs):
            raise errors.InternalError(
                f"{segment.replica}: a chunk of {len(token_ids)} tokens and {len(logprobs)}"
                f" log-probabilities says that it is tokens {segment.start} to {segment.end}"
            )
        completion.token_ids_T.extend(token_ids)
        completion.logprobs_T.extend(logprobs)
        last = completion.segments[-1] if completion.segments else None
        if last and (last.version, last.replica) == (segment.version, segment.replica):
            completion.segments[-1] = replace(last, end=segment.end)
        else:
            completion.segments.append(segment)

    def _take_finished(self, finished: pb.Finished) -> None:
        completion = self._completions_G[finished.index]
        completion.finished = Completion(
            token_ids_T=tuple(completion.token_ids_T),
            logprobs_T=tuple(completion.logprobs_T),
            text=finished.text,
            finish_reason=finished.finish_reason,
            segments=tuple(completion.segments),
        )
