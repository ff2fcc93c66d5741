"""The Engine port: what the rollout server asks of whatever generates tokens.

Axes: T tokens of one completion.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol

from services.rollout.hosts import ONE_HOST, HostPlace
from trimaran.choices import ENGINES
from trimaran.config import RunConfig
from trimaran.errors import InputError, InternalError
from trimaran.types import Manifest, Message, Ranges, Sampling, Tool, VersionId

if TYPE_CHECKING:
    from services.rollout.images import PlacedImages
    from services.rollout.turns.tokenizer import TurnTokenizer
    from trimaran.host.device import Device
    from weights.memory.shadow import Shadow


CHECK_SECONDS = 1.0
"""How often is asked whether the engine lives and whether weights can be loaded."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Completions of one group: all of them, or those that another replica left unfinished.

    Example: GenerationRequest(7, (1, 15, 22), Sampling(1.0, 16, 2, 1), {0: (), 1: (9, 4)})
    """

    number: int
    """The group's."""
    prompt_token_ids: tuple[int, ...]
    sampling: Sampling
    starts: Mapping[int, tuple[int, ...]]
    """Completion index -> tokens that it already has; they count in `sampling.max_tokens`."""
    images: PlacedImages | None = None
    """`prompt_token_ids` hold an image token for each place that they take; None without images."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """New tokens of one completion, all made by one version.

    Example: Chunk(0, 12, VersionId(0, 3), token_ids_T=(7, 8), logprobs_T=(-0.1, -2.3))
    """

    index: int
    start: int
    """Place of the first one, counted from the start of the completion."""
    version: VersionId
    token_ids_T: tuple[int, ...]
    logprobs_T: tuple[float, ...]
    """At the sampling temperature; at temperature 1 when greedy. `temperature.check_temperature`
    looks whether that is so, after the first load."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A completion's end.

    Example: Ended(0, "stop")
    """

    index: int
    finish_reason: str
    """"stop" or "length", as in `Completion`."""
    experts: bytes = field(default=b"", repr=False)
    """As `Completion.experts`, with `trainer.router.replay`. Of all tokens, also of those that it began
    with."""
    prompt_experts: bytes = field(default=b"", repr=False)
    """As `Group.prompt_experts`."""
    cached_tokens: int = 0
    """Of the prompt: those whose keys and values the engine had already."""


Event = Chunk | Ended


class Engine(Protocol):
    """Makes tokens under one version of the weights at a time, which may change while it does.

    It starts without weights: nothing is generated before the first `load_weights`. Methods are
    called from one event loop and must not block it. Where one raises, the server passes the error to the caller.

    An engine subclasses it, and so has the defaults of what it cannot do. In short (docs/extending.md has
    a small engine whole):

        class SmallestEngine(Engine):
            def __init__(self, config: RunConfig, device: Device) -> None: ...

            async def start(self):
                self._chat = ChatTokenizer.of(self._config)

            async def generate(self, request):
                for index, start in request.starts.items():
                    yield Chunk(index, len(start), self._live, (7,), (0.0,))
                    yield Ended(index, "length")

            async def load_weights(self, shadow, version):
                self._tensors = {name: tensor.clone() for name, tensor in shadow.tensors()}
                self._live = version
                return 0.0

            async def read_back(self, manifest, ranges):
                return dict(read_by_name(self._tensors.__getitem__, manifest, ranges))
    """

    reports_experts: ClassVar[bool] = False
    """It fills `Ended.experts` where `config.trainer.router.replay` asks for them."""
    spans_hosts: ClassVar[bool] = False
    """It can stand on several hosts. Where `rollout.hosts` is above 1 it is made with `place`, a
    `HostPlace`. Its workers on further hosts load from `shadow.elsewhere`."""
    adds_adapters: ClassVar[bool] = False
    """It takes versions that have adapters beside the frozen model, as with `trainer.lora.merged: false`."""
    takes_turns: ClassVar[bool] = False
    """It has `turns` and heeds `Sampling.stop`, for the section `environment`."""
    sleeps: ClassVar[bool] = False
    """It can leave its device to the trainer, for `run.pools: colocated`."""

    @abstractmethod
    async def start(self) -> None:
        """Build the model, with any weights. Returns when requests can be taken.

        Called once, in the main thread, before gRPC starts its threads: so child processes may be
        forked here. Raises DeadlineError after `start_timeout`.
        """
        ...

    @property
    @abstractmethod
    def stop_token_ids(self) -> frozenset[int]:
        """The tokens that end a completion; such a token is its last one."""
        ...

    @abstractmethod
    def tokenize(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        """The prompt by the model's chat template, with the opening of the answer. Each image is one
        image token; the server expands it.

        Raises InputError for a prompt that the engine cannot take, such as one with images where the
        engine takes none.
        """
        ...

    @abstractmethod
    def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text, without special tokens."""
        ...

    @property
    def turns(self) -> TurnTokenizer:
        """If it `takes_turns`: what makes tokens of an episode's messages, and messages of its tokens."""
        raise InternalError(f"{type(self).__name__} takes no turns")

    @abstractmethod
    def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        """Chunks of each completion, in order, and one Ended each, after its last chunk.

        Every token comes with its log-probability and the version that made it: a chunk ends where
        the version changes. About one chunk a second and completion is enough. Several requests run
        at a time; closing the generator ends this one.

        Raises BehindError when no version is loaded (any more), UnavailableError when the engine is
        dead.
        """
        ...

    @abstractmethod
    async def load_weights(self, shadow: Shadow, version: VersionId) -> float:
        """Replace all weights by those of `shadow`, under the running requests, which then go on
        under `version` with their keys and values computed again. Returns the pause in seconds.

        Where `shadow.changes` is not None, they are all that differs from the version that was loaded
        last, and an engine may load them alone.

        The shadow must not be read after this returns: copy. Raises TransferError. After a failure,
        which includes being cancelled at its caller's deadline, nothing may be generated until a
        load succeeds.
        """
        ...

    @abstractmethod
    async def read_back(self, manifest: Manifest, ranges: Ranges) -> dict[int, str]:
        """Digests, by block number, of what the engine really computes with: not of the shadow.

        `ranges` are the wanted blocks of `manifest`, which has their tensors of the live version and
        may lack others. Runs beside generation, in portions. What is read while a load is under way
        means nothing; the caller finds out.
        Raises InternalError naming what cannot be read back.
        """
        ...

    @property
    @abstractmethod
    def num_running(self) -> int:
        """Completions under way."""
        ...

    @abstractmethod
    def check(self) -> None:
        """Asked once a second. Raises InternalError when the engine cannot work any more; the
        replica then ends, and its process is started again."""
        ...

    @abstractmethod
    async def close(self) -> None:
        """Ends what `start` began."""
        ...

    async def follow(self) -> None:
        """On a further host, in the place of `start`, if it `spans_hosts`: start this host's part. Returns
        when that takes orders from the first host; then come `check` and `close`."""
        raise InternalError(f"{type(self).__name__} stands on one host")

    async def sleep(self) -> None:
        """If it `sleeps`: give up the device's memory, weights as well as keys and values, as far as the
        engine can. Requests under way end in BehindError, and nothing is generated until `load_weights`,
        which also wakes it. `read_back` is not called meanwhile.

        After a failure the process ends, because what it still keeps is unknown. So it does where this
        takes longer than 30 s (`SLEEP_SECONDS` of weight sync), for the trainer waits for the device.
        """
        raise InternalError(f"{type(self).__name__} cannot leave its device")


def create_engine(config: RunConfig, device: Device, place: HostPlace = ONE_HOST) -> Engine:
    """The engine that `rollout.engine` names; its module is imported here and not before.

    Raises InputError for one that cannot do what the run asks of it.
    """
    engine = ENGINES.load(config.rollout.engine)
    if config.is_colocated and not engine.sleeps:
        raise InputError(
            f"run.pools: colocated, and rollout.engine {config.rollout.engine} cannot leave its device to"
            " the trainer; set run.pools=separate, or take an engine that can (vllm)"
        )
    if config.environment and not engine.takes_turns:
        raise InputError(
            f"environment: rollout.engine {config.rollout.engine} takes no turns of an episode; leave the"
            " section out, or take an engine that does (vllm, transformers)"
        )
    if config.trainer.router.replay and not engine.reports_experts:
        raise InputError(
            f"trainer.router.replay: rollout.engine {config.rollout.engine} does not report which experts"
            " it chose for a token; leave it out, or take one that does (vllm)"
        )
    if config.trainer.sends_adapters and not engine.adds_adapters:
        raise InputError(
            f"trainer.lora.merged: rollout.engine {config.rollout.engine} adds no adapters; leave it out,"
            " or take one that does (vllm)"
        )
    if place == ONE_HOST:
        return engine(config, device)
    if not engine.spans_hosts:
        raise InputError(
            f"rollout.hosts: rollout.engine {config.rollout.engine} stands on one host; leave it out, or"
            " take one that can be on several (vllm)"
        )
    return engine(config, device, place=place)
