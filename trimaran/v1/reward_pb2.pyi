from trimaran.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ScoreGroupRequest(_message.Message):
    __slots__ = ("caller", "prompt", "answers")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    caller: _types_pb2.Caller
    prompt: _types_pb2.Prompt
    answers: _containers.RepeatedCompositeFieldContainer[Answer]
    def __init__(self, caller: _Optional[_Union[_types_pb2.Caller, _Mapping]] = ..., prompt: _Optional[_Union[_types_pb2.Prompt, _Mapping]] = ..., answers: _Optional[_Iterable[_Union[Answer, _Mapping]]] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("text", "token_ids", "finish_reason", "messages")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: bytes
    finish_reason: str
    messages: _containers.RepeatedCompositeFieldContainer[_types_pb2.Message]
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[bytes] = ..., finish_reason: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[_types_pb2.Message, _Mapping]]] = ...) -> None: ...

class ScoreGroupResponse(_message.Message):
    __slots__ = ("verdicts",)
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    verdicts: _containers.RepeatedCompositeFieldContainer[_types_pb2.Verdict]
    def __init__(self, verdicts: _Optional[_Iterable[_Union[_types_pb2.Verdict, _Mapping]]] = ...) -> None: ...
