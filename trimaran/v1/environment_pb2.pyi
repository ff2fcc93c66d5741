from trimaran.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OpenRequest(_message.Message):
    __slots__ = ("caller", "episode", "prompt", "seed")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    EPISODE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    caller: _types_pb2.Caller
    episode: str
    prompt: _types_pb2.Prompt
    seed: int
    def __init__(self, caller: _Optional[_Union[_types_pb2.Caller, _Mapping]] = ..., episode: _Optional[str] = ..., prompt: _Optional[_Union[_types_pb2.Prompt, _Mapping]] = ..., seed: _Optional[int] = ...) -> None: ...

class OpenResponse(_message.Message):
    __slots__ = ("messages", "tools", "max_tokens")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[_types_pb2.Message]
    tools: _containers.RepeatedCompositeFieldContainer[_types_pb2.Tool]
    max_tokens: int
    def __init__(self, messages: _Optional[_Iterable[_Union[_types_pb2.Message, _Mapping]]] = ..., tools: _Optional[_Iterable[_Union[_types_pb2.Tool, _Mapping]]] = ..., max_tokens: _Optional[int] = ...) -> None: ...

class StepRequest(_message.Message):
    __slots__ = ("caller", "episode", "turn", "message", "finish_reason", "num_prompt_tokens", "num_tokens")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    EPISODE_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    caller: _types_pb2.Caller
    episode: str
    turn: int
    message: _types_pb2.Message
    finish_reason: str
    num_prompt_tokens: int
    num_tokens: int
    def __init__(self, caller: _Optional[_Union[_types_pb2.Caller, _Mapping]] = ..., episode: _Optional[str] = ..., turn: _Optional[int] = ..., message: _Optional[_Union[_types_pb2.Message, _Mapping]] = ..., finish_reason: _Optional[str] = ..., num_prompt_tokens: _Optional[int] = ..., num_tokens: _Optional[int] = ...) -> None: ...

class StepResponse(_message.Message):
    __slots__ = ("messages", "reward", "done", "num_calls", "num_failures", "sequence", "tools", "max_tokens")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    NUM_CALLS_FIELD_NUMBER: _ClassVar[int]
    NUM_FAILURES_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[_types_pb2.Message]
    reward: float
    done: bool
    num_calls: int
    num_failures: int
    sequence: int
    tools: _containers.RepeatedCompositeFieldContainer[_types_pb2.Tool]
    max_tokens: int
    def __init__(self, messages: _Optional[_Iterable[_Union[_types_pb2.Message, _Mapping]]] = ..., reward: _Optional[float] = ..., done: bool = ..., num_calls: _Optional[int] = ..., num_failures: _Optional[int] = ..., sequence: _Optional[int] = ..., tools: _Optional[_Iterable[_Union[_types_pb2.Tool, _Mapping]]] = ..., max_tokens: _Optional[int] = ...) -> None: ...

class CloseRequest(_message.Message):
    __slots__ = ("caller", "episode")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    EPISODE_FIELD_NUMBER: _ClassVar[int]
    caller: _types_pb2.Caller
    episode: str
    def __init__(self, caller: _Optional[_Union[_types_pb2.Caller, _Mapping]] = ..., episode: _Optional[str] = ...) -> None: ...

class CloseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
