"""From what a run names to what a worker plays with."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from services.environment.loading.boxes import FunctionBox, Player, Toolbox
from services.environment.loading.functions import CallableTool
from services.environment.loading.python import python_tool
from services.environment.loading.trl import TrlBox
from services.environment.loading.verl import VerlBox, is_verl, provide_verl
from trimaran.errors import InputError
from trimaran.host.user_code import ImportRefusedError, import_target
from trimaran.sandbox.job import SandboxLimits
from trimaran.types import Tool

FORMS = (
    "reset(row) and step(message) as in trimaran.episodes; TRL's reset(**columns) with methods that are tools;"
    " verl's create, execute, calc_reward and release"
)


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """What a worker loads.

    Example: LoadSpec(tools=("/home/me/tools.py:add",))
    """

    tools: tuple[str, ...] = ()
    factory: str = ""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Of the factory; of verl's classes among the tools, by the class's name."""
    answer_key: str = "answer"
    python_seconds: float = 0.0
    """Of one program of the tool `python`; 0 where there is none."""
    python_mib: int = 1024

    @property
    def loads(self) -> bool:
        """Whether there is anything to load."""
        return bool(self.targets or self.python_seconds)

    @property
    def targets(self) -> tuple[str, ...]:
        return (*self.tools, self.factory) if self.factory else self.tools


@dataclass(frozen=True, slots=True)
class Loaded:
    """Toolboxes, or a player."""

    boxes: tuple[Toolbox, ...] = ()
    player: Player | None = None

    @property
    def tools(self) -> tuple[Tool, ...]:
        return tuple(one.tool for box in self.boxes for one in box.tools.values())


def preload(spec: LoadSpec) -> None:
    """Imports the modules, and makes nothing of what is in them. Raises InputError."""
    provide_verl()
    for target in spec.targets:
        _import(target)


def load(spec: LoadSpec) -> Loaded:
    """Raises InputError for what cannot be imported, made or shown to a policy."""
    preload(spec)
    if spec.factory:
        return _load_factory(spec)
    boxes: list[Toolbox] = []
    functions: list[CallableTool] = []
    for target in spec.tools:
        found = _import(target)
        if is_verl(found):
            options = spec.options.get(found.__name__, {})
            boxes.append(_made(target, VerlBox, found, options, spec.answer_key))
        else:
            functions.append(CallableTool.of(found, target.rpartition(":")[2]))
    if spec.python_seconds:
        functions.append(python_tool(SandboxLimits(spec.python_seconds, spec.python_mib)))
    return Loaded((FunctionBox(functions), *boxes))


def _load_factory(spec: LoadSpec) -> Loaded:
    target, options = spec.factory, spec.options
    found = _import(target)
    if is_verl(found):
        return Loaded((_made(target, VerlBox, found, options, spec.answer_key),))
    if not callable(found):
        raise InputError(f"{target}: it is no class but a {type(found).__name__}")
    environment = _made(target, found, **options)
    if not callable(getattr(environment, "reset", None)):
        raise InputError(f"{target}: a class of an environment has one of: {FORMS}")
    if _is_ours(environment):
        return Loaded(player=Player(environment))
    box = TrlBox(environment, spec.answer_key)
    if not box.tools:
        raise InputError(
            f"{target}: it has no tools; a class of an environment has one of: {FORMS}"
        )
    return Loaded((box,))


def _is_ours(environment: Any) -> bool:
    """TRL's `reset` takes columns, and a tool of its may be called `step`."""
    parameters = list(inspect.signature(environment.reset).parameters)
    return callable(getattr(environment, "step", None)) and parameters[:1] == ["row"]


def _import(target: str) -> Any:
    try:
        module, name = import_target(target)
    except ImportRefusedError as error:
        raise InputError(str(error)) from None
    return getattr(module, name)


def _made(target: str, make: Any, *given: Any, **options: Any) -> Any:
    try:
        return make(*given, **options)
    except InputError:
        raise
    except Exception as error:  # user code runs here
        text = " ".join(str(error).split())
        raise InputError(f"{target}: cannot be made: {type(error).__name__}: {text}") from error
