from trimaran.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Run(_message.Message):
    __slots__ = ("run_id", "state", "step", "num_steps", "error", "name", "owner", "priority", "created_at", "started_at", "ended_at", "remedy", "held", "waiting_for", "replicas", "folder", "starts", "reward", "held_out", "devices", "ends_at", "doing")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[Run.State]
        STATE_STARTING: _ClassVar[Run.State]
        STATE_RUNNING: _ClassVar[Run.State]
        STATE_SUCCEEDED: _ClassVar[Run.State]
        STATE_FAILED: _ClassVar[Run.State]
        STATE_CANCELLED: _ClassVar[Run.State]
        STATE_PAUSED: _ClassVar[Run.State]
        STATE_QUEUED: _ClassVar[Run.State]
        STATE_PAUSING: _ClassVar[Run.State]
        STATE_CANCELLING: _ClassVar[Run.State]
    STATE_UNSPECIFIED: Run.State
    STATE_STARTING: Run.State
    STATE_RUNNING: Run.State
    STATE_SUCCEEDED: Run.State
    STATE_FAILED: Run.State
    STATE_CANCELLED: Run.State
    STATE_PAUSED: Run.State
    STATE_QUEUED: Run.State
    STATE_PAUSING: Run.State
    STATE_CANCELLING: Run.State
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    HELD_OUT_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    ENDS_AT_FIELD_NUMBER: _ClassVar[int]
    DOING_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    state: Run.State
    step: int
    num_steps: int
    error: str
    name: str
    owner: str
    priority: int
    created_at: float
    started_at: float
    ended_at: float
    remedy: str
    held: str
    waiting_for: str
    replicas: Replicas
    folder: str
    starts: int
    reward: float
    held_out: float
    devices: int
    ends_at: float
    doing: str
    def __init__(self, run_id: _Optional[str] = ..., state: _Optional[_Union[Run.State, str]] = ..., step: _Optional[int] = ..., num_steps: _Optional[int] = ..., error: _Optional[str] = ..., name: _Optional[str] = ..., owner: _Optional[str] = ..., priority: _Optional[int] = ..., created_at: _Optional[float] = ..., started_at: _Optional[float] = ..., ended_at: _Optional[float] = ..., remedy: _Optional[str] = ..., held: _Optional[str] = ..., waiting_for: _Optional[str] = ..., replicas: _Optional[_Union[Replicas, _Mapping]] = ..., folder: _Optional[str] = ..., starts: _Optional[int] = ..., reward: _Optional[float] = ..., held_out: _Optional[float] = ..., devices: _Optional[int] = ..., ends_at: _Optional[float] = ..., doing: _Optional[str] = ...) -> None: ...

class Replicas(_message.Message):
    __slots__ = ("min", "max", "granted")
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    min: int
    max: int
    granted: int
    def __init__(self, min: _Optional[int] = ..., max: _Optional[int] = ..., granted: _Optional[int] = ...) -> None: ...

class CreateRunRequest(_message.Message):
    __slots__ = ("request_id", "config", "overrides", "priority")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    OVERRIDES_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    config: str
    overrides: _containers.RepeatedScalarFieldContainer[str]
    priority: int
    def __init__(self, request_id: _Optional[str] = ..., config: _Optional[str] = ..., overrides: _Optional[_Iterable[str]] = ..., priority: _Optional[int] = ...) -> None: ...

class CreateRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class GetRunRequest(_message.Message):
    __slots__ = ("run_id", "with_config")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    WITH_CONFIG_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    with_config: bool
    def __init__(self, run_id: _Optional[str] = ..., with_config: bool = ...) -> None: ...

class GetRunResponse(_message.Message):
    __slots__ = ("run", "config")
    RUN_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    run: Run
    config: str
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ..., config: _Optional[str] = ...) -> None: ...

class ListRunsRequest(_message.Message):
    __slots__ = ("states", "owner", "page_size", "page_token")
    STATES_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    states: _containers.RepeatedScalarFieldContainer[Run.State]
    owner: str
    page_size: int
    page_token: str
    def __init__(self, states: _Optional[_Iterable[_Union[Run.State, str]]] = ..., owner: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListRunsResponse(_message.Message):
    __slots__ = ("runs", "next_page_token")
    RUNS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[Run]
    next_page_token: str
    def __init__(self, runs: _Optional[_Iterable[_Union[Run, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class WatchRunRequest(_message.Message):
    __slots__ = ("run_id", "after_sequence", "until_now")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_NOW_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    after_sequence: int
    until_now: bool
    def __init__(self, run_id: _Optional[str] = ..., after_sequence: _Optional[int] = ..., until_now: bool = ...) -> None: ...

class RunEvent(_message.Message):
    __slots__ = ("sequence", "kind", "run", "values", "text", "time", "root")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[RunEvent.Kind]
        KIND_STATE: _ClassVar[RunEvent.Kind]
        KIND_STEP: _ClassVar[RunEvent.Kind]
        KIND_VALIDATION: _ClassVar[RunEvent.Kind]
        KIND_SKIPPED: _ClassVar[RunEvent.Kind]
        KIND_REPLICA_LOST: _ClassVar[RunEvent.Kind]
        KIND_REPLICA_BACK: _ClassVar[RunEvent.Kind]
        KIND_HELD: _ClassVar[RunEvent.Kind]
        KIND_RELEASED: _ClassVar[RunEvent.Kind]
        KIND_INDIGESTIBLE: _ClassVar[RunEvent.Kind]
        KIND_NONFINITE: _ClassVar[RunEvent.Kind]
        KIND_CHECKPOINT: _ClassVar[RunEvent.Kind]
        KIND_CHECKPOINT_FAILED: _ClassVar[RunEvent.Kind]
        KIND_FINISHED: _ClassVar[RunEvent.Kind]
        KIND_PROCESS: _ClassVar[RunEvent.Kind]
        KIND_MISSED: _ClassVar[RunEvent.Kind]
        KIND_TAINTED: _ClassVar[RunEvent.Kind]
    KIND_UNSPECIFIED: RunEvent.Kind
    KIND_STATE: RunEvent.Kind
    KIND_STEP: RunEvent.Kind
    KIND_VALIDATION: RunEvent.Kind
    KIND_SKIPPED: RunEvent.Kind
    KIND_REPLICA_LOST: RunEvent.Kind
    KIND_REPLICA_BACK: RunEvent.Kind
    KIND_HELD: RunEvent.Kind
    KIND_RELEASED: RunEvent.Kind
    KIND_INDIGESTIBLE: RunEvent.Kind
    KIND_NONFINITE: RunEvent.Kind
    KIND_CHECKPOINT: RunEvent.Kind
    KIND_CHECKPOINT_FAILED: RunEvent.Kind
    KIND_FINISHED: RunEvent.Kind
    KIND_PROCESS: RunEvent.Kind
    KIND_MISSED: RunEvent.Kind
    KIND_TAINTED: RunEvent.Kind
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
    TIME_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    kind: RunEvent.Kind
    run: Run
    values: _containers.ScalarMap[str, float]
    text: str
    time: float
    root: str
    def __init__(self, sequence: _Optional[int] = ..., kind: _Optional[_Union[RunEvent.Kind, str]] = ..., run: _Optional[_Union[Run, _Mapping]] = ..., values: _Optional[_Mapping[str, float]] = ..., text: _Optional[str] = ..., time: _Optional[float] = ..., root: _Optional[str] = ...) -> None: ...

class WatchRunResponse(_message.Message):
    __slots__ = ("event",)
    EVENT_FIELD_NUMBER: _ClassVar[int]
    event: RunEvent
    def __init__(self, event: _Optional[_Union[RunEvent, _Mapping]] = ...) -> None: ...

class PauseRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class PauseRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class ResumeRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class ResumeRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

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

class DeleteRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class DeleteRunResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ScaleRunRequest(_message.Message):
    __slots__ = ("run_id", "min_replicas", "max_replicas")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    MIN_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    MAX_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    min_replicas: int
    max_replicas: int
    def __init__(self, run_id: _Optional[str] = ..., min_replicas: _Optional[int] = ..., max_replicas: _Optional[int] = ...) -> None: ...

class ScaleRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class ListCheckpointsRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class Checkpoint(_message.Message):
    __slots__ = ("step", "path", "root", "kept", "score", "num_bytes", "saved_at")
    STEP_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    SAVED_AT_FIELD_NUMBER: _ClassVar[int]
    step: int
    path: str
    root: str
    kept: bool
    score: float
    num_bytes: int
    saved_at: float
    def __init__(self, step: _Optional[int] = ..., path: _Optional[str] = ..., root: _Optional[str] = ..., kept: bool = ..., score: _Optional[float] = ..., num_bytes: _Optional[int] = ..., saved_at: _Optional[float] = ...) -> None: ...

class ListCheckpointsResponse(_message.Message):
    __slots__ = ("checkpoints",)
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    checkpoints: _containers.RepeatedCompositeFieldContainer[Checkpoint]
    def __init__(self, checkpoints: _Optional[_Iterable[_Union[Checkpoint, _Mapping]]] = ...) -> None: ...

class GetSamplesRequest(_message.Message):
    __slots__ = ("run_id", "validation_step", "trained_step", "limit", "offset")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_STEP_FIELD_NUMBER: _ClassVar[int]
    TRAINED_STEP_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    validation_step: int
    trained_step: int
    limit: int
    offset: int
    def __init__(self, run_id: _Optional[str] = ..., validation_step: _Optional[int] = ..., trained_step: _Optional[int] = ..., limit: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class Sample(_message.Message):
    __slots__ = ("prompt_id", "prompt", "answer", "reference", "reward", "terms", "fault", "episode", "place", "group", "number", "greedy", "num_images")
    class TermsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    PROMPT_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    EPISODE_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    GREEDY_FIELD_NUMBER: _ClassVar[int]
    NUM_IMAGES_FIELD_NUMBER: _ClassVar[int]
    prompt_id: str
    prompt: str
    answer: str
    reference: str
    reward: float
    terms: _containers.ScalarMap[str, float]
    fault: str
    episode: Episode
    place: int
    group: int
    number: int
    greedy: bool
    num_images: int
    def __init__(self, prompt_id: _Optional[str] = ..., prompt: _Optional[str] = ..., answer: _Optional[str] = ..., reference: _Optional[str] = ..., reward: _Optional[float] = ..., terms: _Optional[_Mapping[str, float]] = ..., fault: _Optional[str] = ..., episode: _Optional[_Union[Episode, _Mapping]] = ..., place: _Optional[int] = ..., group: _Optional[int] = ..., number: _Optional[int] = ..., greedy: bool = ..., num_images: _Optional[int] = ...) -> None: ...

class Episode(_message.Message):
    __slots__ = ("turns", "finish_reason")
    TURNS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    turns: _containers.RepeatedCompositeFieldContainer[EpisodeTurn]
    finish_reason: str
    def __init__(self, turns: _Optional[_Iterable[_Union[EpisodeTurn, _Mapping]]] = ..., finish_reason: _Optional[str] = ...) -> None: ...

class EpisodeTurn(_message.Message):
    __slots__ = ("turn", "versions")
    TURN_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    turn: _types_pb2.Turn
    versions: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, turn: _Optional[_Union[_types_pb2.Turn, _Mapping]] = ..., versions: _Optional[_Iterable[str]] = ...) -> None: ...

class GetSamplesResponse(_message.Message):
    __slots__ = ("validation_steps", "trained_steps", "samples", "num_samples", "step")
    VALIDATION_STEPS_FIELD_NUMBER: _ClassVar[int]
    TRAINED_STEPS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    validation_steps: _containers.RepeatedScalarFieldContainer[int]
    trained_steps: _containers.RepeatedScalarFieldContainer[int]
    samples: _containers.RepeatedCompositeFieldContainer[Sample]
    num_samples: int
    step: int
    def __init__(self, validation_steps: _Optional[_Iterable[int]] = ..., trained_steps: _Optional[_Iterable[int]] = ..., samples: _Optional[_Iterable[_Union[Sample, _Mapping]]] = ..., num_samples: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class GetLogsRequest(_message.Message):
    __slots__ = ("run_id", "process", "lines", "follow", "after_position")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    AFTER_POSITION_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    process: str
    lines: int
    follow: bool
    after_position: int
    def __init__(self, run_id: _Optional[str] = ..., process: _Optional[str] = ..., lines: _Optional[int] = ..., follow: bool = ..., after_position: _Optional[int] = ...) -> None: ...

class GetLogsResponse(_message.Message):
    __slots__ = ("lines", "processes", "position")
    LINES_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    lines: _containers.RepeatedScalarFieldContainer[str]
    processes: _containers.RepeatedScalarFieldContainer[str]
    position: int
    def __init__(self, lines: _Optional[_Iterable[str]] = ..., processes: _Optional[_Iterable[str]] = ..., position: _Optional[int] = ...) -> None: ...

class GetLedgerRequest(_message.Message):
    __slots__ = ("run_id", "group", "verify")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    VERIFY_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    group: int
    verify: bool
    def __init__(self, run_id: _Optional[str] = ..., group: _Optional[int] = ..., verify: bool = ...) -> None: ...

class GetLedgerResponse(_message.Message):
    __slots__ = ("lines", "json", "sound")
    LINES_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    SOUND_FIELD_NUMBER: _ClassVar[int]
    lines: _containers.RepeatedScalarFieldContainer[str]
    json: str
    sound: bool
    def __init__(self, lines: _Optional[_Iterable[str]] = ..., json: _Optional[str] = ..., sound: bool = ...) -> None: ...
