from trimaran.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Replica(_message.Message):
    __slots__ = ("name", "address")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class RegisterReplicaRequest(_message.Message):
    __slots__ = ("run_id", "replica", "peer")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    replica: Replica
    peer: _types_pb2.Peer
    def __init__(self, run_id: _Optional[str] = ..., replica: _Optional[_Union[Replica, _Mapping]] = ..., peer: _Optional[_Union[_types_pb2.Peer, _Mapping]] = ...) -> None: ...

class RegisterReplicaResponse(_message.Message):
    __slots__ = ("incarnation", "heartbeat_seconds")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    heartbeat_seconds: float
    def __init__(self, incarnation: _Optional[int] = ..., heartbeat_seconds: _Optional[float] = ...) -> None: ...

class DeregisterReplicaRequest(_message.Message):
    __slots__ = ("run_id", "name", "incarnation")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    name: str
    incarnation: int
    def __init__(self, run_id: _Optional[str] = ..., name: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class DeregisterReplicaResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("run_id", "name", "incarnation", "live")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    name: str
    incarnation: int
    live: _types_pb2.PolicyVersion
    def __init__(self, run_id: _Optional[str] = ..., name: _Optional[str] = ..., incarnation: _Optional[int] = ..., live: _Optional[_Union[_types_pb2.PolicyVersion, _Mapping]] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("known",)
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    known: bool
    def __init__(self, known: bool = ...) -> None: ...

class PublishVersionRequest(_message.Message):
    __slots__ = ("caller", "version")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    caller: _types_pb2.Caller
    version: _types_pb2.PolicyVersion
    def __init__(self, caller: _Optional[_Union[_types_pb2.Caller, _Mapping]] = ..., version: _Optional[_Union[_types_pb2.PolicyVersion, _Mapping]] = ...) -> None: ...

class SleepReplicasRequest(_message.Message):
    __slots__ = ("caller",)
    CALLER_FIELD_NUMBER: _ClassVar[int]
    caller: _types_pb2.Caller
    def __init__(self, caller: _Optional[_Union[_types_pb2.Caller, _Mapping]] = ...) -> None: ...

class SleepReplicasResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Routing(_message.Message):
    __slots__ = ("live", "routable", "unroutable", "drained")
    class UnroutableEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    LIVE_FIELD_NUMBER: _ClassVar[int]
    ROUTABLE_FIELD_NUMBER: _ClassVar[int]
    UNROUTABLE_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    live: _types_pb2.PolicyVersion
    routable: _containers.RepeatedCompositeFieldContainer[Replica]
    unroutable: _containers.ScalarMap[str, str]
    drained: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, live: _Optional[_Union[_types_pb2.PolicyVersion, _Mapping]] = ..., routable: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ..., unroutable: _Optional[_Mapping[str, str]] = ..., drained: _Optional[_Iterable[str]] = ...) -> None: ...

class PublishVersionResponse(_message.Message):
    __slots__ = ("routing", "metrics")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ROUTING_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    routing: Routing
    metrics: _containers.ScalarMap[str, float]
    def __init__(self, routing: _Optional[_Union[Routing, _Mapping]] = ..., metrics: _Optional[_Mapping[str, float]] = ...) -> None: ...

class GetRoutingRequest(_message.Message):
    __slots__ = ("caller",)
    CALLER_FIELD_NUMBER: _ClassVar[int]
    caller: _types_pb2.Caller
    def __init__(self, caller: _Optional[_Union[_types_pb2.Caller, _Mapping]] = ...) -> None: ...

class GetRoutingResponse(_message.Message):
    __slots__ = ("routing",)
    ROUTING_FIELD_NUMBER: _ClassVar[int]
    routing: Routing
    def __init__(self, routing: _Optional[_Union[Routing, _Mapping]] = ...) -> None: ...

class ReportReplicaRequest(_message.Message):
    __slots__ = ("caller", "name", "reason")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    caller: _types_pb2.Caller
    name: str
    reason: str
    def __init__(self, caller: _Optional[_Union[_types_pb2.Caller, _Mapping]] = ..., name: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ReportReplicaResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListProofsRequest(_message.Message):
    __slots__ = ("caller", "versions")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    caller: _types_pb2.Caller
    versions: _containers.RepeatedCompositeFieldContainer[_types_pb2.VersionId]
    def __init__(self, caller: _Optional[_Union[_types_pb2.Caller, _Mapping]] = ..., versions: _Optional[_Iterable[_Union[_types_pb2.VersionId, _Mapping]]] = ...) -> None: ...

class ListProofsResponse(_message.Message):
    __slots__ = ("proofs",)
    PROOFS_FIELD_NUMBER: _ClassVar[int]
    proofs: _containers.RepeatedCompositeFieldContainer[_types_pb2.Proof]
    def __init__(self, proofs: _Optional[_Iterable[_Union[_types_pb2.Proof, _Mapping]]] = ...) -> None: ...

class ListFaultsRequest(_message.Message):
    __slots__ = ("caller", "after")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    caller: _types_pb2.Caller
    after: int
    def __init__(self, caller: _Optional[_Union[_types_pb2.Caller, _Mapping]] = ..., after: _Optional[int] = ...) -> None: ...

class ListFaultsResponse(_message.Message):
    __slots__ = ("proofs",)
    PROOFS_FIELD_NUMBER: _ClassVar[int]
    proofs: _containers.RepeatedCompositeFieldContainer[_types_pb2.Proof]
    def __init__(self, proofs: _Optional[_Iterable[_Union[_types_pb2.Proof, _Mapping]]] = ...) -> None: ...

class VersionRecord(_message.Message):
    __slots__ = ("policy", "num_blocks", "num_bytes", "committed_at", "proofs")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_AT_FIELD_NUMBER: _ClassVar[int]
    PROOFS_FIELD_NUMBER: _ClassVar[int]
    policy: _types_pb2.PolicyVersion
    num_blocks: int
    num_bytes: int
    committed_at: float
    proofs: _containers.RepeatedCompositeFieldContainer[_types_pb2.Proof]
    def __init__(self, policy: _Optional[_Union[_types_pb2.PolicyVersion, _Mapping]] = ..., num_blocks: _Optional[int] = ..., num_bytes: _Optional[int] = ..., committed_at: _Optional[float] = ..., proofs: _Optional[_Iterable[_Union[_types_pb2.Proof, _Mapping]]] = ...) -> None: ...

class ListVersionsRequest(_message.Message):
    __slots__ = ("run_id", "limit")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    limit: int
    def __init__(self, run_id: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListVersionsResponse(_message.Message):
    __slots__ = ("versions",)
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedCompositeFieldContainer[VersionRecord]
    def __init__(self, versions: _Optional[_Iterable[_Union[VersionRecord, _Mapping]]] = ...) -> None: ...

class VerifyReplicasRequest(_message.Message):
    __slots__ = ("run_id", "names")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, run_id: _Optional[str] = ..., names: _Optional[_Iterable[str]] = ...) -> None: ...

class VerifyReplicasResponse(_message.Message):
    __slots__ = ("proofs", "unroutable")
    class UnroutableEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PROOFS_FIELD_NUMBER: _ClassVar[int]
    UNROUTABLE_FIELD_NUMBER: _ClassVar[int]
    proofs: _containers.RepeatedCompositeFieldContainer[_types_pb2.Proof]
    unroutable: _containers.ScalarMap[str, str]
    def __init__(self, proofs: _Optional[_Iterable[_Union[_types_pb2.Proof, _Mapping]]] = ..., unroutable: _Optional[_Mapping[str, str]] = ...) -> None: ...
