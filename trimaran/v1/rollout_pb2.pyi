from trimaran.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Sampling(_message.Message):
    __slots__ = ("temperature", "max_tokens", "num_samples", "seed", "top_p", "stop")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    max_tokens: int
    num_samples: int
    seed: int
    top_p: float
    stop: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, temperature: _Optional[float] = ..., max_tokens: _Optional[int] = ..., num_samples: _Optional[int] = ..., seed: _Optional[int] = ..., top_p: _Optional[float] = ..., stop: _Optional[_Iterable[str]] = ...) -> None: ...

class Continuation(_message.Message):
    __slots__ = ("index", "token_ids")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    index: int
    token_ids: bytes
    def __init__(self, index: _Optional[int] = ..., token_ids: _Optional[bytes] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("caller", "number", "attempt", "prompt", "sampling", "continuations", "min_version", "turn")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    CONTINUATIONS_FIELD_NUMBER: _ClassVar[int]
    MIN_VERSION_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    caller: _types_pb2.Caller
    number: int
    attempt: int
    prompt: _types_pb2.Prompt
    sampling: Sampling
    continuations: _containers.RepeatedCompositeFieldContainer[Continuation]
    min_version: _types_pb2.VersionId
    turn: TurnRequest
    def __init__(self, caller: _Optional[_Union[_types_pb2.Caller, _Mapping]] = ..., number: _Optional[int] = ..., attempt: _Optional[int] = ..., prompt: _Optional[_Union[_types_pb2.Prompt, _Mapping]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., continuations: _Optional[_Iterable[_Union[Continuation, _Mapping]]] = ..., min_version: _Optional[_Union[_types_pb2.VersionId, _Mapping]] = ..., turn: _Optional[_Union[TurnRequest, _Mapping]] = ...) -> None: ...

class TurnRequest(_message.Message):
    __slots__ = ("prefix_token_ids", "prefix_images")
    PREFIX_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_IMAGES_FIELD_NUMBER: _ClassVar[int]
    prefix_token_ids: bytes
    prefix_images: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, prefix_token_ids: _Optional[bytes] = ..., prefix_images: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("prompt_token_ids", "image_digest")
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IMAGE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    prompt_token_ids: bytes
    image_digest: str
    def __init__(self, prompt_token_ids: _Optional[bytes] = ..., image_digest: _Optional[str] = ...) -> None: ...

class SegmentChunk(_message.Message):
    __slots__ = ("index", "segment", "token_ids", "logprobs")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    index: int
    segment: _types_pb2.Segment
    token_ids: bytes
    logprobs: bytes
    def __init__(self, index: _Optional[int] = ..., segment: _Optional[_Union[_types_pb2.Segment, _Mapping]] = ..., token_ids: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("index", "finish_reason", "text", "experts", "prompt_experts", "message", "cached_tokens")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    EXPERTS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_EXPERTS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    index: int
    finish_reason: str
    text: str
    experts: bytes
    prompt_experts: bytes
    message: _types_pb2.Message
    cached_tokens: int
    def __init__(self, index: _Optional[int] = ..., finish_reason: _Optional[str] = ..., text: _Optional[str] = ..., experts: _Optional[bytes] = ..., prompt_experts: _Optional[bytes] = ..., message: _Optional[_Union[_types_pb2.Message, _Mapping]] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("opened", "chunks", "finished")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    opened: Opened
    chunks: _containers.RepeatedCompositeFieldContainer[SegmentChunk]
    finished: _containers.RepeatedCompositeFieldContainer[Finished]
    def __init__(self, opened: _Optional[_Union[Opened, _Mapping]] = ..., chunks: _Optional[_Iterable[_Union[SegmentChunk, _Mapping]]] = ..., finished: _Optional[_Iterable[_Union[Finished, _Mapping]]] = ...) -> None: ...

class StageWeightsRequest(_message.Message):
    __slots__ = ("caller", "version", "manifest", "sources", "limits", "attempt", "keep_live")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    KEEP_LIVE_FIELD_NUMBER: _ClassVar[int]
    caller: _types_pb2.Caller
    version: _types_pb2.PolicyVersion
    manifest: _types_pb2.Manifest
    sources: _containers.RepeatedCompositeFieldContainer[_types_pb2.Source]
    limits: _types_pb2.TransferLimits
    attempt: str
    keep_live: bool
    def __init__(self, caller: _Optional[_Union[_types_pb2.Caller, _Mapping]] = ..., version: _Optional[_Union[_types_pb2.PolicyVersion, _Mapping]] = ..., manifest: _Optional[_Union[_types_pb2.Manifest, _Mapping]] = ..., sources: _Optional[_Iterable[_Union[_types_pb2.Source, _Mapping]]] = ..., limits: _Optional[_Union[_types_pb2.TransferLimits, _Mapping]] = ..., attempt: _Optional[str] = ..., keep_live: bool = ...) -> None: ...

class StageWeightsResponse(_message.Message):
    __slots__ = ("staged",)
    STAGED_FIELD_NUMBER: _ClassVar[int]
    staged: _types_pb2.Staged
    def __init__(self, staged: _Optional[_Union[_types_pb2.Staged, _Mapping]] = ...) -> None: ...

class CommitWeightsRequest(_message.Message):
    __slots__ = ("caller", "version", "maker")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MAKER_FIELD_NUMBER: _ClassVar[int]
    caller: _types_pb2.Caller
    version: _types_pb2.PolicyVersion
    maker: str
    def __init__(self, caller: _Optional[_Union[_types_pb2.Caller, _Mapping]] = ..., version: _Optional[_Union[_types_pb2.PolicyVersion, _Mapping]] = ..., maker: _Optional[str] = ...) -> None: ...

class CommitWeightsResponse(_message.Message):
    __slots__ = ("pause_seconds",)
    PAUSE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    pause_seconds: float
    def __init__(self, pause_seconds: _Optional[float] = ...) -> None: ...

class AbortWeightsRequest(_message.Message):
    __slots__ = ("caller", "version", "attempt")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    caller: _types_pb2.Caller
    version: _types_pb2.VersionId
    attempt: str
    def __init__(self, caller: _Optional[_Union[_types_pb2.Caller, _Mapping]] = ..., version: _Optional[_Union[_types_pb2.VersionId, _Mapping]] = ..., attempt: _Optional[str] = ...) -> None: ...

class AbortWeightsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SleepRequest(_message.Message):
    __slots__ = ("caller",)
    CALLER_FIELD_NUMBER: _ClassVar[int]
    caller: _types_pb2.Caller
    def __init__(self, caller: _Optional[_Union[_types_pb2.Caller, _Mapping]] = ...) -> None: ...

class SleepResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReadBackRequest(_message.Message):
    __slots__ = ("caller", "version", "blocks", "timeout_seconds")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    caller: _types_pb2.Caller
    version: _types_pb2.VersionId
    blocks: _types_pb2.Ranges
    timeout_seconds: float
    def __init__(self, caller: _Optional[_Union[_types_pb2.Caller, _Mapping]] = ..., version: _Optional[_Union[_types_pb2.VersionId, _Mapping]] = ..., blocks: _Optional[_Union[_types_pb2.Ranges, _Mapping]] = ..., timeout_seconds: _Optional[float] = ...) -> None: ...

class ReadBackResponse(_message.Message):
    __slots__ = ("digests",)
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    digests: bytes
    def __init__(self, digests: _Optional[bytes] = ...) -> None: ...

class GetReplicaRequest(_message.Message):
    __slots__ = ("caller",)
    CALLER_FIELD_NUMBER: _ClassVar[int]
    caller: _types_pb2.Caller
    def __init__(self, caller: _Optional[_Union[_types_pb2.Caller, _Mapping]] = ...) -> None: ...

class GetReplicaResponse(_message.Message):
    __slots__ = ("name", "live", "num_running")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    name: str
    live: _types_pb2.PolicyVersion
    num_running: int
    def __init__(self, name: _Optional[str] = ..., live: _Optional[_Union[_types_pb2.PolicyVersion, _Mapping]] = ..., num_running: _Optional[int] = ...) -> None: ...
