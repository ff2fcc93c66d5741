from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Goal(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GOAL_UNSPECIFIED: _ClassVar[Goal]
    GOAL_RUN: _ClassVar[Goal]
    GOAL_PAUSE: _ClassVar[Goal]
    GOAL_CANCEL: _ClassVar[Goal]
GOAL_UNSPECIFIED: Goal
GOAL_RUN: Goal
GOAL_PAUSE: Goal
GOAL_CANCEL: Goal

class GetStatusRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("epoch", "step", "goal", "running")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    GOAL_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    step: int
    goal: Goal
    running: bool
    def __init__(self, epoch: _Optional[int] = ..., step: _Optional[int] = ..., goal: _Optional[_Union[Goal, str]] = ..., running: bool = ...) -> None: ...

class SetGoalRequest(_message.Message):
    __slots__ = ("run_id", "goal")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    GOAL_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    goal: Goal
    def __init__(self, run_id: _Optional[str] = ..., goal: _Optional[_Union[Goal, str]] = ...) -> None: ...

class SetGoalResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
