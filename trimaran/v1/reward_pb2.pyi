from trimaran.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ScoreGroupRequest(_message.Message):
    __slots__ = ("caller", "group")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    caller: _types_pb2.Caller
    group: _types_pb2.Group
    def __init__(self, caller: _Optional[_Union[_types_pb2.Caller, _Mapping]] = ..., group: _Optional[_Union[_types_pb2.Group, _Mapping]] = ...) -> None: ...

class ScoreGroupResponse(_message.Message):
    __slots__ = ("verdicts",)
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    verdicts: _containers.RepeatedCompositeFieldContainer[_types_pb2.Verdict]
    def __init__(self, verdicts: _Optional[_Iterable[_Union[_types_pb2.Verdict, _Mapping]]] = ...) -> None: ...
