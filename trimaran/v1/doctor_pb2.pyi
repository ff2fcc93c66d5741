from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ExamineRequest(_message.Message):
    __slots__ = ("config", "has_redis")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    HAS_REDIS_FIELD_NUMBER: _ClassVar[int]
    config: str
    has_redis: bool
    def __init__(self, config: _Optional[str] = ..., has_redis: bool = ...) -> None: ...

class ExamineResponse(_message.Message):
    __slots__ = ("findings", "versions", "model_bytes")
    class VersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    MODEL_BYTES_FIELD_NUMBER: _ClassVar[int]
    findings: _containers.RepeatedCompositeFieldContainer[DoctorFinding]
    versions: _containers.ScalarMap[str, str]
    model_bytes: int
    def __init__(self, findings: _Optional[_Iterable[_Union[DoctorFinding, _Mapping]]] = ..., versions: _Optional[_Mapping[str, str]] = ..., model_bytes: _Optional[int] = ...) -> None: ...

class DoctorFinding(_message.Message):
    __slots__ = ("check", "fault", "severity", "what", "why", "fix")
    CHECK_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    FIX_FIELD_NUMBER: _ClassVar[int]
    check: str
    fault: str
    severity: str
    what: str
    why: str
    fix: str
    def __init__(self, check: _Optional[str] = ..., fault: _Optional[str] = ..., severity: _Optional[str] = ..., what: _Optional[str] = ..., why: _Optional[str] = ..., fix: _Optional[str] = ...) -> None: ...

class GetTimeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetTimeResponse(_message.Message):
    __slots__ = ("time",)
    TIME_FIELD_NUMBER: _ClassVar[int]
    time: float
    def __init__(self, time: _Optional[float] = ...) -> None: ...

class MeasureRequest(_message.Message):
    __slots__ = ("start",)
    START_FIELD_NUMBER: _ClassVar[int]
    start: str
    def __init__(self, start: _Optional[str] = ...) -> None: ...

class MeasureResponse(_message.Message):
    __slots__ = ("seconds", "bytes_per_second")
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    seconds: float
    bytes_per_second: float
    def __init__(self, seconds: _Optional[float] = ..., bytes_per_second: _Optional[float] = ...) -> None: ...

class SendZerosRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SendZerosResponse(_message.Message):
    __slots__ = ("zeros",)
    ZEROS_FIELD_NUMBER: _ClassVar[int]
    zeros: bytes
    def __init__(self, zeros: _Optional[bytes] = ...) -> None: ...
