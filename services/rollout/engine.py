"""The Engine port: what the rollout server asks of whatever generates tokens.

Axes: T tokens of one completion.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from trimaran.choices import ENGINES, load
from trimaran.config import RunConfig
from trimaran.types import Manifest, Message, Ranges, Sampling, VersionId

if TYPE_CHECKING:
    from services.weight_sync.data.shadow import Shadow
    from trimaran.device import Device


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Completions of one group: all of them, or those that another replica left unfinished."""

    number: int
    """The group's."""
    prompt_token_ids: tuple[int, ...]
    sampling: Sampling
    starts: Mapping[int, tuple[int, ...]]
    """Completion index -> tokens that it already has; they count in `sampling.max_tokens`."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """New tokens of one completion, all made by one version."""

    index: int
    start: int
    """Place of the first one, counted from the start of the completion."""
    version: VersionId
    token_ids_T: tuple[int, ...]
    logprobs_T: tuple[float, ...]
    """At the sampling temperature; at temperature 1 when greedy."""


@dataclass(frozen=True, slots=True)
class Ended:
    index: int
    finish_reason: str
    """"stop" or "length", as in `Completion`."""


Event = Chunk | Ended


class Engine(Protocol):
    """Generates under one version at a time; weights change while requests run.

    `start` loads no weights that matter: nothing is generated before the first `load_weights`.
    """

    async def start(self) -> None:
        """Runs in the main thread before anything else, so that children may be forked."""
        ...

    @property
    def stop_token_ids(self) -> frozenset[int]: ...

    def tokenize(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The prompt by the model's chat template, with the opening of the answer."""
        ...

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """Without special tokens."""
        ...

    def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        """Closing the generator ends the request. A chunk ends where the version changes.

        Raises BehindError when a load failed, UnavailableError when the engine is dead.
        """
        ...

    async def load_weights(self, shadow: Shadow, version: VersionId) -> float:
        """Take a whole version live under the running requests. Returns the pause in seconds.

        Raises TransferError; from then on nothing is generated until a load succeeds. To be
        cancelled is a failure like any other: whoever waits for it has a deadline.
        """
        ...

    async def read_back(self, manifest: Manifest, ranges: Ranges) -> dict[int, str]:
        """Digests of the live version's blocks as they are loaded, by block number.

        Runs beside generation, in portions. What it reads while a load is under way means
        nothing: the caller finds out. Raises InternalError naming what it cannot read back.
        """
        ...

    @property
    def num_running(self) -> int:
        """Completions under way."""
        ...

    def check(self) -> None:
        """Raises InternalError when the engine cannot work any more."""
        ...

    async def close(self) -> None: ...


def create_engine(config: RunConfig, device: Device) -> Engine:
    """The engine that `rollout.engine` names; its module is imported here and not before."""
    return load(ENGINES[config.rollout.engine])(config, device)
