"""The types that travel between services.

Each stage wraps the one before it, so a type says which stage you are in:
Prompt -> Group -> ScoredGroup -> TrainingBatch, and PolicyVersion on the way back.

Axes: T tokens of one completion, S those of them that were sampled, G completions of one group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: the run, and the fencing epoch of its controller.

    Example: `Caller("addition-20261120-120000", epoch=2)`
    """

    run_id: str
    epoch: int


@dataclass(frozen=True, slots=True, order=True)
class VersionId:
    """The weights after `step` training steps in one lineage of a run.

    A resume that cannot reach the recorded weights again begins a new lineage.

    Example:
        assert str(VersionId(lineage=0, step=7)) == "0.7"
        assert VersionId(1, 3) > VersionId(0, 7)  # a newer lineage is newer, whatever its step
    """

    lineage: int
    step: int

    def __str__(self) -> str:
        return f"{self.lineage}.{self.step}"


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """A version of a run's weights, named by number and by content.

    Example: `PolicyVersion("addition-1", VersionId(0, 7), root="5f0c…")`
    """

    run_id: str
    version: VersionId
    root: str
    """Hex digest over the manifest of the version's tensors."""


MAX_BLOCKS = 2**20
"""Blocks of one version: twenty times those of the largest models with an expert a block."""
Ranges = tuple[tuple[int, int], ...]
"""Half-open ranges of block numbers, ascending and apart from each other: ((0, 4), (7, 9)).

Blocks are numbered through a manifest: tensor after tensor, each in the order of its cuts."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a version, cut into blocks along one axis.

    Every shard that a permitted parallel layout makes is a union of blocks.

    Example:
        info = TensorInfo("lm_head.weight", "BF16", (49152, 576), axis=0, cuts=(24576,))
        assert info.num_blocks == 2  # rows 0 to 24575 and 24576 to 49151
    """

    name: str
    """Hugging Face name."""
    dtype: str
    """As safetensors spells it: BF16, F32, …"""
    shape: tuple[int, ...]
    axis: int = 0
    cuts: tuple[int, ...] = ()
    """Where the axis is cut, ascending, between 0 and shape[axis]; empty for one block."""
    digests: tuple[str, ...] = ()
    """One a block, 32 hex digits; empty where the contents are not known yet."""

    @property
    def num_blocks(self) -> int:
        return len(self.cuts) + 1


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a version is: its tensors in the order of their blocks' numbers, and their root.

    Example:
        tensors = (TensorInfo("a", "F32", (4,)), TensorInfo("b", "F32", (8, 2), cuts=(4,)))
        manifest = Manifest(tensors, root="5f0c…")
        assert manifest.num_blocks == 3  # block 0 is a; blocks 1 and 2 are b
    """

    tensors: tuple[TensorInfo, ...]
    root: str
    """Merkle root over all blocks; the version's name by content."""

    def __hash__(self) -> int:
        # Of 40,000 tensors, each time that a cache is asked, would take milliseconds.
        return hash(self.root)

    @property
    def num_blocks(self) -> int:
        return sum(tensor.num_blocks for tensor in self.tensors)


@dataclass(frozen=True, slots=True)
class TransferGroup:
    """One sender (rank 0) and its receivers (ranks 1 to world_size - 1).

    Example: TransferGroup(group_id=3, nonce="a1b2", world_size=3, rendezvous="127.0.0.1:40000")
    """

    group_id: int
    nonce: str
    world_size: int
    rendezvous: str
    """host:port of the sender's store; empty until the sender has opened it."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The data door of a process that holds weights: a trainer rank or a replica.

    Example: Peer(relay="127.0.0.1:40001", key="secret", host="machine-1")
    """

    relay: str
    """host:port of its relay server."""
    key: str
    """Secret with which a puller authenticates itself there; new with each process."""
    host: str
    """Equal on processes that can map each other's memory."""
    backend: str = ""
    """Backend of the collectives in which it can take part: hccl, nccl or gloo."""


@dataclass(frozen=True, slots=True)
class Delta:
    """Changed elements only, against the version with `base_root`; one piece a block.

    Example: assert Delta(base_root="5f0c…", sizes=(0, 4096, 0, 12)).num_bytes == 4108
    """

    base_root: str
    sizes: tuple[int, ...]
    """Bytes of each block's piece, in the order of the offer's blocks; 0 where nothing changed."""

    @property
    def num_bytes(self) -> int:
        return sum(self.sizes)


@dataclass(frozen=True, slots=True)
class Offer:
    """What one trainer rank can send of the version that it holds.

    Example:
        peer = Peer("127.0.0.1:40001", "secret", "machine-1")
        Offer(peer, blocks=((0, 694),), memory="/proc/4711/fd/12")
    """

    peer: Peer
    blocks: Ranges
    """Its share. The shares of all senders cover every block once."""
    memory: str
    """Path under which a process with the same `peer.host` can map its blocks."""
    delta: Delta | None = None


class Transport(StrEnum):
    COLLECTIVE = "collective"
    """A broadcast in a group of one sender and its receivers."""
    MEMORY = "memory"
    """The sender's host memory, mapped by a receiver on the same machine."""
    RELAY = "relay"
    """Verified blocks over TCP, from whichever peer has them."""


@dataclass(frozen=True, slots=True)
class CollectiveSource:
    """A place in a transfer group, in which one sender broadcasts the blocks.

    Example: CollectiveSource(((0, 694),), group, rank=1)
    """

    transport: ClassVar = Transport.COLLECTIVE
    shared: ClassVar = ""
    blocks: Ranges
    group: TransferGroup
    """Opened by its sender."""
    rank: int
    """The receiver's place in the group."""
    delta: Delta | None = None
    """Set: its pieces travel instead of the blocks."""


@dataclass(frozen=True, slots=True)
class MemorySource:
    """A sender's memory on the receiver's own host.

    Example: MemorySource(offer.blocks, offer.memory)
    """

    transport: ClassVar = Transport.MEMORY
    delta: ClassVar = None
    shared: ClassVar = ""
    blocks: Ranges
    """All blocks of the offer."""
    path: str
    """The offer's."""


@dataclass(frozen=True, slots=True)
class RelaySource:
    """Peers that give out verified blocks.

    Example: RelaySource(((0, 694),), (parent.peer, offer.peer))
    """

    transport: ClassVar = Transport.RELAY
    blocks: Ranges
    peers: tuple[Peer, ...]
    """Asked in this order, the next one when a peer fails or lacks a block."""
    delta: Delta | None = None
    """Set: its pieces travel instead of the blocks."""
    shared: str = ""
    """Set: path of the first peer's shadow on this host, which has the whole version. It is read there,
    and nothing is pulled, where that can be done."""


Source = CollectiveSource | MemorySource | RelaySource
"""Where a receiver gets some blocks of a version from: one type a transport. Each has `blocks`, `delta`
and `shared`, which are None and "" where a transport has no such thing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferLimits:
    """Bounds of one transfer, which both of its ends know.

    Example: TransferLimits(bucket_bytes=64 << 20, timeout=120.0)
    """

    bucket_bytes: int
    """A collective sends at most this much in one message."""
    timeout: float
    """Seconds, after which the transfer has failed."""


@dataclass(frozen=True, slots=True)
class Staged:
    """What a replica says of a version that lies in its shadow, every block verified.

    Example: Staged(manifest.root, 694, {Transport.MEMORY: 269_060_736})
    """

    root: str
    num_blocks: int
    bytes_by_transport: Mapping[Transport, int]
    """Taken from others, with one entry for each transport that was used. For a delta this is
    less than the version's size."""
    path: str = ""
    """Under which a process with the same `peer.host` can read the shadow; empty where it is itself
    another's."""

    @property
    def num_bytes(self) -> int:
        return sum(self.bytes_by_transport.values())


class ProofLevel(StrEnum):
    """How far it is known that an engine computed with a version, least first.

    Example: ProofLevel.LOADED.reaches(ProofLevel.SAMPLED)
    """

    DELIVERED = "delivered"
    """The replica had every block in its host memory, with the right digest, and loaded from there."""
    SAMPLED = "sampled"
    """Besides, some blocks were read back from the engine, and all of these were right."""
    LOADED = "loaded"
    """Besides, every block was read back."""

    def reaches(self, needed: ProofLevel) -> bool:
        levels = tuple(ProofLevel)
        return levels.index(self) >= levels.index(needed)


@dataclass(frozen=True, slots=True)
class Proof:
    """What is known of one version on one replica.

    Example:
        proof = Proof(VersionId(0, 7), "rollout-0", "5f0c…", num_blocks=272, num_loaded=272)
        assert not proof.fault  # tokens of this version from this replica may train
        assert proof.level is ProofLevel.LOADED
    """

    version: VersionId
    replica: str
    """As in the segments that it speaks for."""
    root: str
    """The version's. What the replica staged has the same."""
    num_blocks: int
    """Blocks of the version that the replica has to hold, all of them verified as they landed."""
    num_loaded: int
    """How many of these were read back from the engine since it loaded them; all were right."""
    fault: str = ""
    """Which block was read back and differs. Then no token of this version from this replica trains."""

    @property
    def level(self) -> ProofLevel:
        if self.num_loaded >= self.num_blocks:
            return ProofLevel.LOADED
        return ProofLevel.SAMPLED if self.num_loaded else ProofLevel.DELIVERED


@dataclass(frozen=True, slots=True)
class LedgerEnd:
    """How far a run's ledger had come when that was noted outside its store.

    Example: LedgerEnd(records=812, hash="9c41…")
    """

    records: int
    hash: str
    """Hash of the last of them."""


@dataclass(frozen=True, slots=True)
class VersionRecord:
    """What weight sync remembers of a version.

    Example:
        policy = PolicyVersion("addition-1", VersionId(0, 7), "5f0c…")
        VersionRecord(policy, num_blocks=694, num_bytes=269_060_736, committed_at=1_763_640_000.0)
    """

    policy: PolicyVersion
    num_blocks: int
    num_bytes: int
    committed_at: float
    """Unix seconds."""
    proofs: tuple[Proof, ...] = ()


@dataclass(frozen=True, slots=True)
class Replica:
    """An inference engine with its server.

    Example: Replica("rollout-0", "127.0.0.1:20001")
    """

    name: str
    address: str


@dataclass(frozen=True, slots=True)
class Routing:
    """Which replicas may be asked, and why the others may not.

    Example:
        routing = Routing(None, (), {"rollout-0": "connection refused", "rollout-1": ""})
        assert routing.faults == {"rollout-0": "connection refused"}
    """

    live: PolicyVersion | None
    """None until a version is live."""
    routable: tuple[Replica, ...]
    unroutable: Mapping[str, str] = field(default_factory=dict[str, str])
    """Registered replicas that do not hold the live version, each with its fault.

    The text is empty while a replica has no fault and is only about to take the version.
    """
    drained: frozenset[str] = frozenset()
    """Those that have deregistered, because they are about to end in order."""

    @property
    def faults(self) -> dict[str, str]:
        return {name: fault for name, fault in self.unroutable.items() if fault}

    def describe_unroutable(self) -> str:
        """Example: "rollout-0: connection refused; rollout-1: has no fault, is being updated"."""
        replicas = sorted(self.unroutable.items())
        return "; ".join(
            f"{name}: {fault or 'has no fault, is being updated'}" for name, fault in replicas
        )


IMAGE_PLACE = "<image>"
MAX_PIXELS = 2**26
"""Pixels of an image, as it is in the dataset and as it is prepared: 200 MB once it is decoded."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool, as the policy wrote it.

    Example: ToolCall("add", '{"a": 1, "b": 2}', "call_0")
    """

    name: str
    arguments: str
    """The text of a JSON object; whatever the policy wrote, where that is none."""
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class Tool:
    """What a chat template shows the policy of a tool.

    Example: Tool("add", "Add two numbers.", '{"type": "object", "properties": {}}')
    """

    name: str
    description: str
    parameters: str
    """The text of a JSON schema."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat. Example: `Message("user", "What is 1 + 2?")`"""

    role: str
    """As the model's chat template names it: system, user, assistant, tool."""
    text: str
    """`IMAGE_PLACE` stands where each of `images` belongs."""
    images: tuple[bytes, ...] = ()
    """In the order of their places: PNG files, prepared for the model (`trimaran.data.images`)."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Of the assistant."""
    call_id: str = ""
    """Of a tool: the call that it answers."""
    name: str = ""
    """Of a tool: its name."""
    reasoning: str = ""
    """Of the assistant: what it thought before, where its template keeps that apart."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row of a dataset.

    Example:
        messages = (Message("user", "What is 1 + 2?"),)
        Prompt("train.jsonl:1", messages, task="addition", answer="3", extras={"level": "easy"})
    """

    prompt_id: str
    """File and line."""
    messages: tuple[Message, ...]
    task: str
    answer: str
    """The reference; empty where the dataset has none."""
    extras: Mapping[str, str] = field(default_factory=dict[str, str])
    tools: tuple[Tool, ...] = ()
    """What the chat template shows as tools."""

    @property
    def question(self) -> str:
        """The text of the last message before the answer."""
        return split_prefill(self.messages)[0][-1].text


@dataclass(frozen=True, slots=True)
class Opening:
    """What an episode begins with. Example: Opening((Message("user", "Guess a number."),))"""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    max_tokens: int = 0
    """Of the first turn, at most; 0: the run's own bound."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a turn. Example: Usage(num_prompt_tokens=212, num_tokens=17)"""

    num_prompt_tokens: int
    """Those before it in its sequence."""
    num_tokens: int
    """Its own."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the environment answers to a message of the policy.

    Example: Reply((Message("user", "higher"),), reward=0.0)
    """

    messages: tuple[Message, ...] = ()
    reward: float | None = None
    """For this step."""
    done: bool = False
    num_calls: int = 0
    num_failures: int = 0
    """Of the calls. The messages say why."""
    sequence: int = 0
    """Which sequence of the episode the messages continue, from 0 on. One above the last begins another,
    and the messages are then all of its own."""
    tools: tuple[Tool, ...] = ()
    """Of a new sequence."""
    max_tokens: int = 0
    """Of the next turn, at most; 0: the run's own bound."""


def split_prefill(messages: Sequence[Message]) -> tuple[Sequence[Message], str]:
    """The messages before the answer, and how the answer begins: a last message that is the assistant's,
    from which the model goes on; "" without one. A call of tools is no beginning of an answer."""
    if messages and messages[-1].role == "assistant" and not messages[-1].tool_calls:
        return messages[:-1], messages[-1].text
    return messages, ""


def images_in(messages: Iterable[Message]) -> tuple[bytes, ...]:
    """All of them, in the order of their places."""
    return tuple(image for message in messages for image in message.images)


@dataclass(frozen=True, slots=True)
class Prefix:
    """What a turn of an episode goes on from; empty for the first turn of a sequence.

    Example: Prefix((1, 15, 22), images=(png,))
    """

    token_ids: Sequence[int] = ()
    """All tokens of the sequence so far, given and sampled."""
    images: tuple[bytes, ...] = ()
    """Those of its first messages, whose tokens stand before all that was sampled."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How completions are drawn.

    Example: `Sampling(temperature=1.0, max_tokens=256, num_samples=8)`
    """

    temperature: float
    """0 means greedy; log-probabilities are then at temperature 1."""
    max_tokens: int
    num_samples: int
    seed: int = 0
    """Used by engines that can sample reproducibly."""
    top_p: float = 1.0
    """Each token is drawn from the likeliest ones that have this probability together. Only samples that do
    not train may leave tokens out: the loss takes all of them for possible."""
    stop: tuple[str, ...] = ()
    """Texts that end a completion beside the model's own end. Their tokens stay."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens start..end (exclusive) of a completion, made by one version on one replica.

    Example:
        # The weights changed after the third token.
        Segment(0, 3, VersionId(0, 6), "rollout-0"), Segment(3, 8, VersionId(0, 7), "rollout-0")
    """

    start: int
    end: int
    version: VersionId
    replica: str
    """Who made them: the replica's name, with ~n after the n-th time that a block of what it had
    loaded was found wrong. So tokens from before a replica was fixed never pass for later ones."""


def makers_of(segments: Iterable[Segment]) -> frozenset[tuple[VersionId, str]]:
    """Version and replica of each."""
    return frozenset((segment.version, segment.replica) for segment in segments)


Spans = tuple[tuple[int, int], ...]
"""Half-open ranges of tokens, ascending and apart from each other."""


def sampled_spans(segments: Iterable[Segment]) -> Spans:
    """Where sampled tokens stand, whatever made them.

    Example: sampled_spans((Segment(0, 3, v, "a"), Segment(3, 8, w, "a"), Segment(12, 14, w, "a")))
    is ((0, 8), (12, 14))
    """
    spans: list[tuple[int, int]] = []
    for segment in segments:
        if spans and spans[-1][1] == segment.start:
            spans[-1] = (spans[-1][0], segment.end)
        else:
            spans.append((segment.start, segment.end))
    return tuple(spans)


def _fit(segments: Sequence[Segment], num_tokens: int, num_logprobs: int) -> bool:
    """Whether segments stand one behind the other within T tokens, and name the maker of each sampled one."""
    ends = [0, *(end for one in segments for end in (one.start, one.end)), num_tokens]
    return ends == sorted(ends) and sum(one.end - one.start for one in segments) == num_logprobs


@dataclass(frozen=True, slots=True)
class PartialCompletion:
    """What an interrupted completion has so far. Another replica goes on from there.

    Example:
        segments = (Segment(0, 2, VersionId(0, 7), "rollout-0"),)
        PartialCompletion((28, 2), (-0.11, -0.02), segments)
    """

    token_ids_T: Sequence[int]
    logprobs_S: Sequence[float]
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of an episode: the policy's message, and what the environment answered.

    Example: Turn(Message("assistant", "CALC 3*4"), 9, (Message("user", "12"),), num_given=7)
    """

    message: Message
    num_sampled: int
    """Tokens of the message."""
    replies: tuple[Message, ...] = ()
    num_given: int = 0
    """Tokens that the replies became; 0 behind the last turn."""
    finish_reason: str = "stop"
    """"stop", also at a stop string, or "length"."""
    reward: float | None = None
    """The environment's, for this step."""
    seconds: float = 0.0
    """The environment's, for this step."""
    num_calls: int = 0
    """Tools that were called."""
    num_failures: int = 0
    """Calls that failed; the policy was shown why."""
    sequence: int = 0
    """Where the tokens stand: 0 for the completion's own, n for its n-th branch, from 1 on."""
    num_before: int = 0
    """Tokens of the sequence before what the turn was given; 0 for its first turn."""
    num_cached: int = 0
    """Those of them that the engine had in its prefix cache."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A further sequence of an episode whose history was rewritten: it trains with the episode's advantage.

    Fields are those of a `Completion`.
    """

    token_ids_T: Sequence[int]
    logprobs_S: Sequence[float]
    segments: tuple[Segment, ...]
    experts: bytes = field(default=b"", repr=False)

    @property
    def is_covered(self) -> bool:
        return _fit(self.segments, len(self.token_ids_T), len(self.logprobs_S))


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer to a prompt, or one episode that began with it.

    An episode's tokens follow each other as they were sampled by the policy and given by the environment.

    Example:
        segments = (Segment(0, 2, VersionId(0, 7), "rollout-0"),)
        Completion((28, 2), (-0.11, -0.02), "3", "stop", segments)
    """

    token_ids_T: Sequence[int]
    """Of an answer, all sampled. Of an episode, sampled and given ones, without the group's prompt."""
    logprobs_S: Sequence[float]
    """Of the sampled tokens, at the sampling temperature."""
    text: str
    """The assistant's whole turn: of the tokens, behind the prompt's prefill where it has one. Of an episode
    its last turn."""
    finish_reason: str
    """"stop" (end of sequence, kept as the last token; of an episode, its own end), "length", "turns" for an
    episode that had all its turns, or "fault"."""
    segments: tuple[Segment, ...]
    """Cover the sampled tokens. What stands between them was given."""
    experts: bytes = field(default=b"", repr=False)
    """Which the engine chose for each token before the last sampled one, which no pass reads: layers x
    experts_per_token numbers a token, of one byte, or of two (little-endian) where the model has more
    than 256 experts. Empty where they are not known. Of a continued completion those of the replica
    that ended it, which read the tokens before its own once more; so too of an episode those of its
    last turn."""
    turns: tuple[Turn, ...] = ()
    """Of an episode; empty for an answer."""
    branches: tuple[Branch, ...] = ()
    """Of an episode whose history was rewritten on the way."""
    reward: float | None = None
    """The environment's for the episode; None where it gives none."""
    fault: str = ""
    """Why an episode could not be ended, by a fault of ours: it has no verdict then, and does not train."""

    @property
    def is_covered(self) -> bool:
        """Whether the segments say of every sampled token who made it."""
        own = _fit(self.segments, len(self.token_ids_T), len(self.logprobs_S))
        return own and all(branch.is_covered for branch in self.branches)

    @property
    def all_segments(self) -> tuple[Segment, ...]:
        """With those of its branches."""
        return (*self.segments, *(one for branch in self.branches for one in branch.segments))

    @property
    def is_cut_off(self) -> bool:
        """By a limit, of tokens or of turns: it did not come to an end of its own."""
        return self.finish_reason in ("length", "turns")

    @property
    def num_sampled(self) -> int:
        """Sampled tokens, with those of its branches."""
        return sum(segment.end - segment.start for segment in self.all_segments)


@dataclass(frozen=True, slots=True)
class Group:
    """All completions of one prompt: what GRPO compares with each other.

    Example:
        prompt = Prompt("train.jsonl:1", (Message("user", "1 + 2?"),), "addition", "3")
        segments = (Segment(0, 2, VersionId(0, 7), "rollout-0"),)
        answer = Completion((28, 2), (-0.11, -0.02), "3", "stop", segments)
        group = Group(17, 1, prompt, (33, 1232, 216, 34), (answer, answer))
        assert group.makers == {(VersionId(0, 7), "rollout-0")}
    """

    number: int
    """Place in prompt order; with `attempt` the key of the group's ledger records."""
    attempt: int
    prompt: Prompt
    prompt_token_ids: Sequence[int]
    """With an image token for each place that an image takes."""
    completions_G: tuple[Completion, ...]
    image_digest: str = ""
    """Digest of the processed images that the engine saw (`ProcessedImages.digest`); "" without images."""
    prompt_experts: bytes = field(default=b"", repr=False)
    """As `Completion.experts`, for each token of the prompt, which the completions share."""

    @property
    def makers(self) -> frozenset[tuple[VersionId, str]]:
        """Version and replica of every token: each needs a proof to train."""
        return makers_of(
            segment for completion in self.completions_G for segment in completion.all_segments
        )


LARGEST_REWARD = 1e30
"""In absolute value, of a reward and of each of its terms: sums and means of such stay finite."""


ENVIRONMENT_TERM = "environment"
"""The name of what an episode's environment rewards, among the terms of the reward."""


@dataclass(frozen=True, slots=True)
class Score:
    """A completion that was judged.

    Example: `Score(0.9, terms={"exact": 1.0, "brevity": 0.5})`
    """

    reward: float
    """The weighted sum of its terms."""
    terms: Mapping[str, float] = field(default_factory=dict[str, float])
    """The reward's named parts, unweighted; "term.part" for what a term reports beside its value.
    A term that does not apply to this completion is absent."""
    indigestible: bool = False
    """A checker could not digest the answer, twice: that term is its rule's minimum."""
    prediction: str | None = None
    """What the first rule that reads one takes for the final answer: "42" of "… #### 42". "" where it finds
    none, None where no rule reads one. Equal ones are one vote (majority@k)."""


@dataclass(frozen=True, slots=True)
class Faulted:
    """A completion that could not be judged, by a fault of ours (transport, crash, overload).

    It has no reward and never trains the model.

    Example: `Faulted("style: connection refused", faulted_terms=("style",))`
    """

    fault: str
    terms: Mapping[str, float] = field(default_factory=dict[str, float])
    """Those that could be judged all the same."""
    faulted_terms: tuple[str, ...] = ()
    """Those that could not."""


Verdict = Score | Faulted


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """A group with one verdict for each completion, in the same order.

    Example:
        prompt = Prompt("train.jsonl:1", (Message("user", "1 + 2?"),), "addition", "3")
        segments = (Segment(0, 2, VersionId(0, 7), "rollout-0"),)
        answers = (Completion((28, 2), (-0.1, -0.0), "3", "stop", segments),) * 2
        ScoredGroup(Group(17, 1, prompt, (33,), answers), (Score(1.0), Faulted("timeout")))
    """

    group: Group
    verdicts_G: tuple[Verdict, ...]
    greedy_reward: float | None = None
    """Reward of an answer to the same prompt at temperature 0, where the advantages compare with one."""
    greedy_segments: tuple[Segment, ...] = ()
    """Segments of that answer."""
    payload: bytes = field(default=b"", compare=False, repr=False)
    """As `wire.serialize_scored_group` writes it, where that is known: what is stored is also what is
    sent to train."""

    @property
    def makers(self) -> frozenset[tuple[VersionId, str]]:
        """Version and replica of every token that the step learns from, the greedy answer's as well."""
        return self.group.makers | makers_of(self.greedy_segments)


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """What one training step learns from.

    Example: `TrainingBatch(step=8, groups=())`
    """

    step: int
    """The step that it leads to: the first is 1."""
    groups: tuple[ScoredGroup, ...]
    """In prompt order."""
    num_steps: int = 0
    """Steps of the run, as it stood when the batch was chosen: a falling learning rate ends there."""
