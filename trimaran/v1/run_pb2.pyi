from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Run(_message.Message):
    __slots__ = ("run_id", "state", "step", "num_steps", "error")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[Run.State]
        STATE_STARTING: _ClassVar[Run.State]
        STATE_RUNNING: _ClassVar[Run.State]
        STATE_SUCCEEDED: _ClassVar[Run.State]
        STATE_FAILED: _ClassVar[Run.State]
        STATE_CANCELLED: _ClassVar[Run.State]
        STATE_PAUSED: _ClassVar[Run.State]
    STATE_UNSPECIFIED: Run.State
    STATE_STARTING: Run.State
    STATE_RUNNING: Run.State
    STATE_SUCCEEDED: Run.State
    STATE_FAILED: Run.State
    STATE_CANCELLED: Run.State
    STATE_PAUSED: Run.State
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    state: Run.State
    step: int
    num_steps: int
    error: str
    def __init__(self, run_id: _Optional[str] = ..., state: _Optional[_Union[Run.State, str]] = ..., step: _Optional[int] = ..., num_steps: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class GetRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class GetRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class WatchRunRequest(_message.Message):
    __slots__ = ("run_id", "after_sequence")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    after_sequence: int
    def __init__(self, run_id: _Optional[str] = ..., after_sequence: _Optional[int] = ...) -> None: ...

class RunEvent(_message.Message):
    __slots__ = ("sequence", "kind", "run", "values", "text")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[RunEvent.Kind]
        KIND_STATE: _ClassVar[RunEvent.Kind]
        KIND_STEP: _ClassVar[RunEvent.Kind]
        KIND_VALIDATION: _ClassVar[RunEvent.Kind]
        KIND_SKIPPED: _ClassVar[RunEvent.Kind]
        KIND_REPLICA_LOST: _ClassVar[RunEvent.Kind]
        KIND_REPLICA_BACK: _ClassVar[RunEvent.Kind]
        KIND_PAUSED: _ClassVar[RunEvent.Kind]
        KIND_UNPAUSED: _ClassVar[RunEvent.Kind]
        KIND_INDIGESTIBLE: _ClassVar[RunEvent.Kind]
        KIND_NONFINITE: _ClassVar[RunEvent.Kind]
        KIND_CHECKPOINT: _ClassVar[RunEvent.Kind]
        KIND_CHECKPOINT_FAILED: _ClassVar[RunEvent.Kind]
        KIND_FINISHED: _ClassVar[RunEvent.Kind]
    KIND_UNSPECIFIED: RunEvent.Kind
    KIND_STATE: RunEvent.Kind
    KIND_STEP: RunEvent.Kind
    KIND_VALIDATION: RunEvent.Kind
    KIND_SKIPPED: RunEvent.Kind
    KIND_REPLICA_LOST: RunEvent.Kind
    KIND_REPLICA_BACK: RunEvent.Kind
    KIND_PAUSED: RunEvent.Kind
    KIND_UNPAUSED: RunEvent.Kind
    KIND_INDIGESTIBLE: RunEvent.Kind
    KIND_NONFINITE: RunEvent.Kind
    KIND_CHECKPOINT: RunEvent.Kind
    KIND_CHECKPOINT_FAILED: RunEvent.Kind
    KIND_FINISHED: RunEvent.Kind
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    kind: RunEvent.Kind
    run: Run
    values: _containers.ScalarMap[str, float]
    text: str
    def __init__(self, sequence: _Optional[int] = ..., kind: _Optional[_Union[RunEvent.Kind, str]] = ..., run: _Optional[_Union[Run, _Mapping]] = ..., values: _Optional[_Mapping[str, float]] = ..., text: _Optional[str] = ...) -> None: ...

class WatchRunResponse(_message.Message):
    __slots__ = ("event",)
    EVENT_FIELD_NUMBER: _ClassVar[int]
    event: RunEvent
    def __init__(self, event: _Optional[_Union[RunEvent, _Mapping]] = ...) -> None: ...

class CancelRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class CancelRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...
