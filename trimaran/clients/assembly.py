"""A group that is put together from the streams of one or more replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from trimaran import errors
from trimaran.types import (
    Completion,
    Group,
    Message,
    PartialCompletion,
    Prompt,
    Segment,
    split_prefill,
)
from trimaran.v1 import rollout_pb2 as pb
from trimaran.wire import messages as wire
from trimaran.wire.packed import Logprobs, TokenIds


@dataclass(slots=True)
class _CompletionAssembly:
    token_ids: list[bytes] = field(default_factory=list[bytes])
    logprobs: list[bytes] = field(default_factory=list[bytes])
    """Both packed, chunk by chunk."""
    segments: list[Segment] = field(default_factory=list[Segment])
    finished: Completion | None = None

    @property
    def num_tokens(self) -> int:
        return self.segments[-1].end if self.segments else 0

    def so_far(self) -> PartialCompletion:
        token_ids, logprobs = TokenIds(b"".join(self.token_ids)), Logprobs(b"".join(self.logprobs))
        return PartialCompletion(token_ids, logprobs, tuple(self.segments))


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
        self.prompt_token_ids: Sequence[int] = ()
        self.image_digest = ""
        self.message: Message | None = None
        """Of a turn: what the policy said."""
        self.cached_tokens = 0
        """Of the prompt, of all completions: those that the engine did not compute again."""
        self._prompt_experts = b""

    @property
    def started(self) -> bool:
        return bool(self.prompt_token_ids)

    @property
    def complete(self) -> bool:
        return all(completion.finished for completion in self._completions_G)

    def unfinished(self) -> dict[int, PartialCompletion]:
        return {
            index: c.so_far() for index, c in enumerate(self._completions_G) if c.finished is None
        }

    def group(self, number: int, attempt: int, prompt: Prompt) -> Group:
        """Call when `complete`."""
        completions_G, (_, prefill) = self.completions(), split_prefill(prompt.messages)
        if prefill:
            completions_G = tuple(replace(one, text=prefill + one.text) for one in completions_G)
        return Group(
            *(number, attempt, prompt, self.prompt_token_ids, completions_G),
            image_digest=self.image_digest,
            prompt_experts=self._prompt_experts,
        )

    def completions(self) -> tuple[Completion, ...]:
        """All of them; call when `complete`."""
        finished_G = [completion.finished for completion in self._completions_G]
        assert all(finished_G), "the group is not complete"
        return tuple(completion for completion in finished_G if completion)

    def take(self, response: pb.GenerateResponse) -> None:
        if response.HasField("opened"):
            self._open(response.opened)
        for chunk in response.chunks:
            self._take_chunk(chunk)
        for finished in response.finished:
            self._take_finished(finished)

    def _open(self, opened: pb.Opened) -> None:
        if self.started and opened.image_digest != self.image_digest:
            raise errors.InternalError(
                "two replicas make different pixels of the same images (digests"
                f" {self.image_digest!r} and {opened.image_digest!r}); install the same version of"
                " transformers and the same preprocessor_config.json for both"
            )
        self.prompt_token_ids = TokenIds(opened.prompt_token_ids)
        self.image_digest = opened.image_digest

    def _take_chunk(self, chunk: pb.SegmentChunk) -> None:
        completion = self._completions_G[chunk.index]
        segment = wire.decode_segment(chunk.segment)
        if segment.start != completion.num_tokens:
            raise errors.InternalError(
                f"{segment.replica}: a chunk of completion {chunk.index} begins at token"
                f" {segment.start}; {completion.num_tokens} have arrived"
            )
        token_ids, logprobs = TokenIds(chunk.token_ids), Logprobs(chunk.logprobs)
        place = wire.find_not_finite(logprobs.data)
        if place is not None:
            raise errors.InternalError(
                f"{segment.replica} at version {segment.version}: the log-probability of token"
                f" {segment.start + place} of completion {chunk.index} is {logprobs[place]}"
            )
        if not segment.end - segment.start == len(token_ids) == len(logprobs):
            raise errors.InternalError(
                f"{segment.replica}: a chunk of {len(token_ids)} tokens and {len(logprobs)}"
                f" log-probabilities says that it is tokens {segment.start} to {segment.end}"
            )
        completion.token_ids.append(token_ids.data)
        completion.logprobs.append(logprobs.data)
        last = completion.segments[-1] if completion.segments else None
        if last and (last.version, last.replica) == (segment.version, segment.replica):
            completion.segments[-1] = replace(last, end=segment.end)
        else:
            completion.segments.append(segment)

    def _take_finished(self, finished: pb.Finished) -> None:
        completion = self._completions_G[finished.index]
        so_far = completion.so_far()
        completion.finished = Completion(
            token_ids_T=so_far.token_ids_T,
            logprobs_S=so_far.logprobs_S,
            text=finished.text,
            finish_reason=finished.finish_reason,
            segments=so_far.segments,
            experts=finished.experts,
        )
        self.cached_tokens += finished.cached_tokens
        self._prompt_experts = self._prompt_experts or finished.prompt_experts
        if finished.HasField("message"):
            self.message = wire.decode_message(finished.message)
