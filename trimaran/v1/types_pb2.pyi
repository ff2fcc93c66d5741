from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Caller(_message.Message):
    __slots__ = ("run_id", "epoch")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    epoch: int
    def __init__(self, run_id: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class VersionId(_message.Message):
    __slots__ = ("lineage", "step")
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    lineage: int
    step: int
    def __init__(self, lineage: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class PolicyVersion(_message.Message):
    __slots__ = ("run_id", "version", "root")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    version: VersionId
    root: str
    def __init__(self, run_id: _Optional[str] = ..., version: _Optional[_Union[VersionId, _Mapping]] = ..., root: _Optional[str] = ...) -> None: ...

class ToolCall(_message.Message):
    __slots__ = ("name", "arguments", "call_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    arguments: str
    call_id: str
    def __init__(self, name: _Optional[str] = ..., arguments: _Optional[str] = ..., call_id: _Optional[str] = ...) -> None: ...

class Tool(_message.Message):
    __slots__ = ("name", "description", "parameters")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    parameters: str
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., parameters: _Optional[str] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("role", "text", "images", "tool_calls", "call_id", "name", "reasoning")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    role: str
    text: str
    images: _containers.RepeatedScalarFieldContainer[bytes]
    tool_calls: _containers.RepeatedCompositeFieldContainer[ToolCall]
    call_id: str
    name: str
    reasoning: str
    def __init__(self, role: _Optional[str] = ..., text: _Optional[str] = ..., images: _Optional[_Iterable[bytes]] = ..., tool_calls: _Optional[_Iterable[_Union[ToolCall, _Mapping]]] = ..., call_id: _Optional[str] = ..., name: _Optional[str] = ..., reasoning: _Optional[str] = ...) -> None: ...

class Prompt(_message.Message):
    __slots__ = ("prompt_id", "messages", "task", "answer", "extras", "tools")
    class ExtrasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PROMPT_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    EXTRAS_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    prompt_id: str
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    task: str
    answer: str
    extras: _containers.ScalarMap[str, str]
    tools: _containers.RepeatedCompositeFieldContainer[Tool]
    def __init__(self, prompt_id: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., task: _Optional[str] = ..., answer: _Optional[str] = ..., extras: _Optional[_Mapping[str, str]] = ..., tools: _Optional[_Iterable[_Union[Tool, _Mapping]]] = ...) -> None: ...

class Segment(_message.Message):
    __slots__ = ("start", "end", "version", "replica")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    version: VersionId
    replica: str
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., version: _Optional[_Union[VersionId, _Mapping]] = ..., replica: _Optional[str] = ...) -> None: ...

class Turn(_message.Message):
    __slots__ = ("message", "num_sampled", "replies", "num_given", "finish_reason", "reward", "seconds", "num_calls", "num_failures", "sequence", "num_before", "num_cached")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLED_FIELD_NUMBER: _ClassVar[int]
    REPLIES_FIELD_NUMBER: _ClassVar[int]
    NUM_GIVEN_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    NUM_CALLS_FIELD_NUMBER: _ClassVar[int]
    NUM_FAILURES_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    NUM_BEFORE_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_FIELD_NUMBER: _ClassVar[int]
    message: Message
    num_sampled: int
    replies: _containers.RepeatedCompositeFieldContainer[Message]
    num_given: int
    finish_reason: str
    reward: float
    seconds: float
    num_calls: int
    num_failures: int
    sequence: int
    num_before: int
    num_cached: int
    def __init__(self, message: _Optional[_Union[Message, _Mapping]] = ..., num_sampled: _Optional[int] = ..., replies: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., num_given: _Optional[int] = ..., finish_reason: _Optional[str] = ..., reward: _Optional[float] = ..., seconds: _Optional[float] = ..., num_calls: _Optional[int] = ..., num_failures: _Optional[int] = ..., sequence: _Optional[int] = ..., num_before: _Optional[int] = ..., num_cached: _Optional[int] = ...) -> None: ...

class Branch(_message.Message):
    __slots__ = ("token_ids", "logprobs", "segments", "experts")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    EXPERTS_FIELD_NUMBER: _ClassVar[int]
    token_ids: bytes
    logprobs: bytes
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    experts: bytes
    def __init__(self, token_ids: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ..., segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ..., experts: _Optional[bytes] = ...) -> None: ...

class Completion(_message.Message):
    __slots__ = ("token_ids", "logprobs", "text", "finish_reason", "segments", "experts", "turns", "branches", "reward", "fault")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    EXPERTS_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    BRANCHES_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    token_ids: bytes
    logprobs: bytes
    text: str
    finish_reason: str
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    experts: bytes
    turns: _containers.RepeatedCompositeFieldContainer[Turn]
    branches: _containers.RepeatedCompositeFieldContainer[Branch]
    reward: float
    fault: str
    def __init__(self, token_ids: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ..., text: _Optional[str] = ..., finish_reason: _Optional[str] = ..., segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ..., experts: _Optional[bytes] = ..., turns: _Optional[_Iterable[_Union[Turn, _Mapping]]] = ..., branches: _Optional[_Iterable[_Union[Branch, _Mapping]]] = ..., reward: _Optional[float] = ..., fault: _Optional[str] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("number", "attempt", "prompt", "prompt_token_ids", "completions", "image_digest", "prompt_experts")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    COMPLETIONS_FIELD_NUMBER: _ClassVar[int]
    IMAGE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PROMPT_EXPERTS_FIELD_NUMBER: _ClassVar[int]
    number: int
    attempt: int
    prompt: Prompt
    prompt_token_ids: bytes
    completions: _containers.RepeatedCompositeFieldContainer[Completion]
    image_digest: str
    prompt_experts: bytes
    def __init__(self, number: _Optional[int] = ..., attempt: _Optional[int] = ..., prompt: _Optional[_Union[Prompt, _Mapping]] = ..., prompt_token_ids: _Optional[bytes] = ..., completions: _Optional[_Iterable[_Union[Completion, _Mapping]]] = ..., image_digest: _Optional[str] = ..., prompt_experts: _Optional[bytes] = ...) -> None: ...

class Score(_message.Message):
    __slots__ = ("reward", "terms", "indigestible", "prediction")
    class TermsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    REWARD_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    INDIGESTIBLE_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_FIELD_NUMBER: _ClassVar[int]
    reward: float
    terms: _containers.ScalarMap[str, float]
    indigestible: bool
    prediction: str
    def __init__(self, reward: _Optional[float] = ..., terms: _Optional[_Mapping[str, float]] = ..., indigestible: bool = ..., prediction: _Optional[str] = ...) -> None: ...

class Faulted(_message.Message):
    __slots__ = ("fault", "terms", "faulted_terms")
    class TermsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    FAULT_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    FAULTED_TERMS_FIELD_NUMBER: _ClassVar[int]
    fault: str
    terms: _containers.ScalarMap[str, float]
    faulted_terms: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, fault: _Optional[str] = ..., terms: _Optional[_Mapping[str, float]] = ..., faulted_terms: _Optional[_Iterable[str]] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("score", "faulted")
    SCORE_FIELD_NUMBER: _ClassVar[int]
    FAULTED_FIELD_NUMBER: _ClassVar[int]
    score: Score
    faulted: Faulted
    def __init__(self, score: _Optional[_Union[Score, _Mapping]] = ..., faulted: _Optional[_Union[Faulted, _Mapping]] = ...) -> None: ...

class ScoredGroup(_message.Message):
    __slots__ = ("group", "verdicts", "greedy_reward", "greedy_segments")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    GREEDY_REWARD_FIELD_NUMBER: _ClassVar[int]
    GREEDY_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    group: Group
    verdicts: _containers.RepeatedCompositeFieldContainer[Verdict]
    greedy_reward: float
    greedy_segments: _containers.RepeatedCompositeFieldContainer[Segment]
    def __init__(self, group: _Optional[_Union[Group, _Mapping]] = ..., verdicts: _Optional[_Iterable[_Union[Verdict, _Mapping]]] = ..., greedy_reward: _Optional[float] = ..., greedy_segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ...) -> None: ...

class TensorInfo(_message.Message):
    __slots__ = ("name", "dtype", "shape", "axis", "cuts", "digests")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    AXIS_FIELD_NUMBER: _ClassVar[int]
    CUTS_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    axis: int
    cuts: _containers.RepeatedScalarFieldContainer[int]
    digests: bytes
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., axis: _Optional[int] = ..., cuts: _Optional[_Iterable[int]] = ..., digests: _Optional[bytes] = ...) -> None: ...

class Manifest(_message.Message):
    __slots__ = ("tensors", "root")
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    tensors: _containers.RepeatedCompositeFieldContainer[TensorInfo]
    root: str
    def __init__(self, tensors: _Optional[_Iterable[_Union[TensorInfo, _Mapping]]] = ..., root: _Optional[str] = ...) -> None: ...

class Ranges(_message.Message):
    __slots__ = ("bounds",)
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    bounds: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, bounds: _Optional[_Iterable[int]] = ...) -> None: ...

class TransferGroup(_message.Message):
    __slots__ = ("group_id", "nonce", "world_size", "rendezvous")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_FIELD_NUMBER: _ClassVar[int]
    group_id: int
    nonce: str
    world_size: int
    rendezvous: str
    def __init__(self, group_id: _Optional[int] = ..., nonce: _Optional[str] = ..., world_size: _Optional[int] = ..., rendezvous: _Optional[str] = ...) -> None: ...

class Peer(_message.Message):
    __slots__ = ("relay", "key", "host", "backend")
    RELAY_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    relay: str
    key: str
    host: str
    backend: str
    def __init__(self, relay: _Optional[str] = ..., key: _Optional[str] = ..., host: _Optional[str] = ..., backend: _Optional[str] = ...) -> None: ...

class Delta(_message.Message):
    __slots__ = ("base_root", "sizes")
    BASE_ROOT_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    base_root: str
    sizes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, base_root: _Optional[str] = ..., sizes: _Optional[_Iterable[int]] = ...) -> None: ...

class Offer(_message.Message):
    __slots__ = ("peer", "blocks", "memory", "delta")
    PEER_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    peer: Peer
    blocks: Ranges
    memory: str
    delta: Delta
    def __init__(self, peer: _Optional[_Union[Peer, _Mapping]] = ..., blocks: _Optional[_Union[Ranges, _Mapping]] = ..., memory: _Optional[str] = ..., delta: _Optional[_Union[Delta, _Mapping]] = ...) -> None: ...

class CollectiveSource(_message.Message):
    __slots__ = ("blocks", "group", "rank", "delta")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    blocks: Ranges
    group: TransferGroup
    rank: int
    delta: Delta
    def __init__(self, blocks: _Optional[_Union[Ranges, _Mapping]] = ..., group: _Optional[_Union[TransferGroup, _Mapping]] = ..., rank: _Optional[int] = ..., delta: _Optional[_Union[Delta, _Mapping]] = ...) -> None: ...

class MemorySource(_message.Message):
    __slots__ = ("blocks", "path")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    blocks: Ranges
    path: str
    def __init__(self, blocks: _Optional[_Union[Ranges, _Mapping]] = ..., path: _Optional[str] = ...) -> None: ...

class RelaySource(_message.Message):
    __slots__ = ("blocks", "peers", "delta", "shared")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    blocks: Ranges
    peers: _containers.RepeatedCompositeFieldContainer[Peer]
    delta: Delta
    shared: str
    def __init__(self, blocks: _Optional[_Union[Ranges, _Mapping]] = ..., peers: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ..., delta: _Optional[_Union[Delta, _Mapping]] = ..., shared: _Optional[str] = ...) -> None: ...

class Source(_message.Message):
    __slots__ = ("collective", "memory", "relay")
    COLLECTIVE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    RELAY_FIELD_NUMBER: _ClassVar[int]
    collective: CollectiveSource
    memory: MemorySource
    relay: RelaySource
    def __init__(self, collective: _Optional[_Union[CollectiveSource, _Mapping]] = ..., memory: _Optional[_Union[MemorySource, _Mapping]] = ..., relay: _Optional[_Union[RelaySource, _Mapping]] = ...) -> None: ...

class TransferLimits(_message.Message):
    __slots__ = ("bucket_bytes", "timeout_seconds")
    BUCKET_BYTES_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    bucket_bytes: int
    timeout_seconds: float
    def __init__(self, bucket_bytes: _Optional[int] = ..., timeout_seconds: _Optional[float] = ...) -> None: ...

class Staged(_message.Message):
    __slots__ = ("root", "num_blocks", "bytes_by_transport", "path")
    class BytesByTransportEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ROOT_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BYTES_BY_TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    root: str
    num_blocks: int
    bytes_by_transport: _containers.ScalarMap[str, int]
    path: str
    def __init__(self, root: _Optional[str] = ..., num_blocks: _Optional[int] = ..., bytes_by_transport: _Optional[_Mapping[str, int]] = ..., path: _Optional[str] = ...) -> None: ...

class Proof(_message.Message):
    __slots__ = ("version", "replica", "root", "num_blocks", "num_loaded", "fault")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_LOADED_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    version: VersionId
    replica: str
    root: str
    num_blocks: int
    num_loaded: int
    fault: str
    def __init__(self, version: _Optional[_Union[VersionId, _Mapping]] = ..., replica: _Optional[str] = ..., root: _Optional[str] = ..., num_blocks: _Optional[int] = ..., num_loaded: _Optional[int] = ..., fault: _Optional[str] = ...) -> None: ...
