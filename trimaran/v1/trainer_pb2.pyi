from trimaran.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HoldGroupsRequest(_message.Message):
    __slots__ = ("caller", "step", "first", "groups")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    caller: _types_pb2.Caller
    step: int
    first: int
    groups: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, caller: _Optional[_Union[_types_pb2.Caller, _Mapping]] = ..., step: _Optional[int] = ..., first: _Optional[int] = ..., groups: _Optional[_Iterable[bytes]] = ...) -> None: ...

class HoldGroupsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HeldBatch(_message.Message):
    __slots__ = ("step", "num_groups", "num_steps", "proofs")
    STEP_FIELD_NUMBER: _ClassVar[int]
    NUM_GROUPS_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    PROOFS_FIELD_NUMBER: _ClassVar[int]
    step: int
    num_groups: int
    num_steps: int
    proofs: _containers.RepeatedCompositeFieldContainer[_types_pb2.Proof]
    def __init__(self, step: _Optional[int] = ..., num_groups: _Optional[int] = ..., num_steps: _Optional[int] = ..., proofs: _Optional[_Iterable[_Union[_types_pb2.Proof, _Mapping]]] = ...) -> None: ...

class TrainRequest(_message.Message):
    __slots__ = ("caller", "batch", "lineage")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    caller: _types_pb2.Caller
    batch: HeldBatch
    lineage: int
    def __init__(self, caller: _Optional[_Union[_types_pb2.Caller, _Mapping]] = ..., batch: _Optional[_Union[HeldBatch, _Mapping]] = ..., lineage: _Optional[int] = ...) -> None: ...

class TrainResponse(_message.Message):
    __slots__ = ("version", "metrics", "nonfinite")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    NONFINITE_FIELD_NUMBER: _ClassVar[int]
    version: _types_pb2.PolicyVersion
    metrics: _containers.ScalarMap[str, float]
    nonfinite: str
    def __init__(self, version: _Optional[_Union[_types_pb2.PolicyVersion, _Mapping]] = ..., metrics: _Optional[_Mapping[str, float]] = ..., nonfinite: _Optional[str] = ...) -> None: ...

class TrainAheadRequest(_message.Message):
    __slots__ = ("caller", "batch")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    caller: _types_pb2.Caller
    batch: HeldBatch
    def __init__(self, caller: _Optional[_Union[_types_pb2.Caller, _Mapping]] = ..., batch: _Optional[_Union[HeldBatch, _Mapping]] = ...) -> None: ...

class TrainAheadResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MakeVersionRequest(_message.Message):
    __slots__ = ("caller", "step", "lineage")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    caller: _types_pb2.Caller
    step: int
    lineage: int
    def __init__(self, caller: _Optional[_Union[_types_pb2.Caller, _Mapping]] = ..., step: _Optional[int] = ..., lineage: _Optional[int] = ...) -> None: ...

class AgreeRequest(_message.Message):
    __slots__ = ("caller", "step")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    caller: _types_pb2.Caller
    step: int
    def __init__(self, caller: _Optional[_Union[_types_pb2.Caller, _Mapping]] = ..., step: _Optional[int] = ...) -> None: ...

class AgreeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class JoinStepRequest(_message.Message):
    __slots__ = ("caller", "step", "lineage", "ahead")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    caller: _types_pb2.Caller
    step: int
    lineage: int
    ahead: bool
    def __init__(self, caller: _Optional[_Union[_types_pb2.Caller, _Mapping]] = ..., step: _Optional[int] = ..., lineage: _Optional[int] = ..., ahead: bool = ...) -> None: ...

class JoinStepResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetPolicyVersionRequest(_message.Message):
    __slots__ = ("caller",)
    CALLER_FIELD_NUMBER: _ClassVar[int]
    caller: _types_pb2.Caller
    def __init__(self, caller: _Optional[_Union[_types_pb2.Caller, _Mapping]] = ...) -> None: ...

class GetPolicyVersionResponse(_message.Message):
    __slots__ = ("version", "manifest", "ledger")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    version: _types_pb2.PolicyVersion
    manifest: _types_pb2.Manifest
    ledger: LedgerEnd
    def __init__(self, version: _Optional[_Union[_types_pb2.PolicyVersion, _Mapping]] = ..., manifest: _Optional[_Union[_types_pb2.Manifest, _Mapping]] = ..., ledger: _Optional[_Union[LedgerEnd, _Mapping]] = ...) -> None: ...

class LedgerEnd(_message.Message):
    __slots__ = ("records", "hash")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    records: int
    hash: str
    def __init__(self, records: _Optional[int] = ..., hash: _Optional[str] = ...) -> None: ...

class GetOfferRequest(_message.Message):
    __slots__ = ("caller",)
    CALLER_FIELD_NUMBER: _ClassVar[int]
    caller: _types_pb2.Caller
    def __init__(self, caller: _Optional[_Union[_types_pb2.Caller, _Mapping]] = ...) -> None: ...

class GetOfferResponse(_message.Message):
    __slots__ = ("version", "offer")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OFFER_FIELD_NUMBER: _ClassVar[int]
    version: _types_pb2.PolicyVersion
    offer: _types_pb2.Offer
    def __init__(self, version: _Optional[_Union[_types_pb2.PolicyVersion, _Mapping]] = ..., offer: _Optional[_Union[_types_pb2.Offer, _Mapping]] = ...) -> None: ...

class OpenTransferRequest(_message.Message):
    __slots__ = ("caller", "group", "timeout_seconds")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    caller: _types_pb2.Caller
    group: _types_pb2.TransferGroup
    timeout_seconds: float
    def __init__(self, caller: _Optional[_Union[_types_pb2.Caller, _Mapping]] = ..., group: _Optional[_Union[_types_pb2.TransferGroup, _Mapping]] = ..., timeout_seconds: _Optional[float] = ...) -> None: ...

class OpenTransferResponse(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: _types_pb2.TransferGroup
    def __init__(self, group: _Optional[_Union[_types_pb2.TransferGroup, _Mapping]] = ...) -> None: ...

class SendWeightsRequest(_message.Message):
    __slots__ = ("caller", "version", "group_id", "blocks", "base_root", "limits")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BASE_ROOT_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    caller: _types_pb2.Caller
    version: _types_pb2.VersionId
    group_id: int
    blocks: _types_pb2.Ranges
    base_root: str
    limits: _types_pb2.TransferLimits
    def __init__(self, caller: _Optional[_Union[_types_pb2.Caller, _Mapping]] = ..., version: _Optional[_Union[_types_pb2.VersionId, _Mapping]] = ..., group_id: _Optional[int] = ..., blocks: _Optional[_Union[_types_pb2.Ranges, _Mapping]] = ..., base_root: _Optional[str] = ..., limits: _Optional[_Union[_types_pb2.TransferLimits, _Mapping]] = ...) -> None: ...

class SendWeightsResponse(_message.Message):
    __slots__ = ("num_bytes",)
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    num_bytes: int
    def __init__(self, num_bytes: _Optional[int] = ...) -> None: ...

class SaveCheckpointRequest(_message.Message):
    __slots__ = ("caller", "step", "ledger", "score")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    caller: _types_pb2.Caller
    step: int
    ledger: LedgerEnd
    score: float
    def __init__(self, caller: _Optional[_Union[_types_pb2.Caller, _Mapping]] = ..., step: _Optional[int] = ..., ledger: _Optional[_Union[LedgerEnd, _Mapping]] = ..., score: _Optional[float] = ...) -> None: ...

class SaveCheckpointResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WaitCheckpointRequest(_message.Message):
    __slots__ = ("caller", "step")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    caller: _types_pb2.Caller
    step: int
    def __init__(self, caller: _Optional[_Union[_types_pb2.Caller, _Mapping]] = ..., step: _Optional[int] = ...) -> None: ...

class WaitCheckpointResponse(_message.Message):
    __slots__ = ("path", "digest")
    PATH_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    path: str
    digest: str
    def __init__(self, path: _Optional[str] = ..., digest: _Optional[str] = ...) -> None: ...

class ExportModelRequest(_message.Message):
    __slots__ = ("caller", "path")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    caller: _types_pb2.Caller
    path: str
    def __init__(self, caller: _Optional[_Union[_types_pb2.Caller, _Mapping]] = ..., path: _Optional[str] = ...) -> None: ...

class ExportModelResponse(_message.Message):
    __slots__ = ("path",)
    PATH_FIELD_NUMBER: _ClassVar[int]
    path: str
    def __init__(self, path: _Optional[str] = ...) -> None: ...
