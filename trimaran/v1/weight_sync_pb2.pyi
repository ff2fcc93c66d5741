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
    __slots__ = ("run_id", "replica")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    replica: Replica
    def __init__(self, run_id: _Optional[str] = ..., replica: _Optional[_Union[Replica, _Mapping]] = ...) -> None: ...

class RegisterReplicaResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PublishVersionRequest(_message.Message):
    __slots__ = ("caller", "version")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    caller: _types_pb2.Caller
    version: _types_pb2.PolicyVersion
    def __init__(self, caller: _Optional[_Union[_types_pb2.Caller, _Mapping]] = ..., version: _Optional[_Union[_types_pb2.PolicyVersion, _Mapping]] = ...) -> None: ...

class Routing(_message.Message):
    __slots__ = ("live", "routable", "unroutable")
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
    live: _types_pb2.PolicyVersion
    routable: _containers.RepeatedCompositeFieldContainer[Replica]
    unroutable: _containers.ScalarMap[str, str]
    def __init__(self, live: _Optional[_Union[_types_pb2.PolicyVersion, _Mapping]] = ..., routable: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ..., unroutable: _Optional[_Mapping[str, str]] = ...) -> None: ...

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
