from trimaran.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StageFollowerRequest(_message.Message):
    __slots__ = ("meeting", "version", "manifest", "sources", "limits", "attempt")
    MEETING_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    meeting: str
    version: _types_pb2.PolicyVersion
    manifest: _types_pb2.Manifest
    sources: _containers.RepeatedCompositeFieldContainer[_types_pb2.Source]
    limits: _types_pb2.TransferLimits
    attempt: str
    def __init__(self, meeting: _Optional[str] = ..., version: _Optional[_Union[_types_pb2.PolicyVersion, _Mapping]] = ..., manifest: _Optional[_Union[_types_pb2.Manifest, _Mapping]] = ..., sources: _Optional[_Iterable[_Union[_types_pb2.Source, _Mapping]]] = ..., limits: _Optional[_Union[_types_pb2.TransferLimits, _Mapping]] = ..., attempt: _Optional[str] = ...) -> None: ...

class StageFollowerResponse(_message.Message):
    __slots__ = ("staged", "path")
    STAGED_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    staged: _types_pb2.Staged
    path: str
    def __init__(self, staged: _Optional[_Union[_types_pb2.Staged, _Mapping]] = ..., path: _Optional[str] = ...) -> None: ...

class KeepFollowerRequest(_message.Message):
    __slots__ = ("meeting", "version")
    MEETING_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    meeting: str
    version: _types_pb2.VersionId
    def __init__(self, meeting: _Optional[str] = ..., version: _Optional[_Union[_types_pb2.VersionId, _Mapping]] = ...) -> None: ...

class KeepFollowerResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AbortFollowerRequest(_message.Message):
    __slots__ = ("meeting", "version", "attempt")
    MEETING_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    meeting: str
    version: _types_pb2.VersionId
    attempt: str
    def __init__(self, meeting: _Optional[str] = ..., version: _Optional[_Union[_types_pb2.VersionId, _Mapping]] = ..., attempt: _Optional[str] = ...) -> None: ...

class AbortFollowerResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
