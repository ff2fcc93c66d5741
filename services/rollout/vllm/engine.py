"""vLLM behind the Engine port: its AsyncLLM here, its core in a child process.

The same code on every device that vLLM (or its plugin) knows. A group is one
request with n samples; completions that continue a prefix are a request each. Of a
prompt with images the first completion is a request of its own, which takes them to
the core; the others name them by their digests.

How a completion that crosses an update knows its versions: `load_weights` pauses
the core, lets the outputs made before the pause pass, and notes in every running
`VllmStream` how many tokens each completion has. What comes after that mark is the
new version's, whenever its reader takes it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from typing import TYPE_CHECKING, Any

from services.rollout.chat import ChatTokenizer
from services.rollout.deadlines import alarm, hold
from services.rollout.engine import Ended, Engine, Event, GenerationRequest
from services.rollout.hosts import ONE_HOST, HostPlace
from services.rollout.images import PlacedImages
from services.rollout.turns.stop_texts import StopTexts
from services.rollout.turns.tokenizer import TurnTokenizer
from services.rollout.vllm.ascend import check_processor, is_npu
from services.rollout.vllm.loading.shown import Shown
from services.rollout.vllm.no_torchvision import do_without_torchvision
from services.rollout.vllm.plugin import BACKEND, HOST_RANK, SYNTHETIC, register
from services.rollout.vllm.pulse import Pulse
from services.rollout.vllm.reported_experts import keep_experts_of_merged_outputs, reported_experts
from services.rollout.vllm.settings import (
    check_environment,
    engine_arguments,
    inspect_models_here,
    is_eager,
    set_environment,
)
from services.rollout.vllm.stream import VllmStream, merge
from services.rollout.vllm.workers import VllmWorkers
from trimaran.config import RunConfig
from trimaran.data.images.processor import takes_images
from trimaran.errors import (
    BehindError,
    DeadlineError,
    InternalError,
    TransferError,
    UnavailableError,
)
from trimaran.host.call_thread import CallThread
from trimaran.host.call_waits import within
from trimaran.host.gloo import share_device
from trimaran.host.large_imports import large_imports
from trimaran.host.lifetime import die_with_parent
from trimaran.types import Manifest, Message, Ranges, Sampling, Tool, VersionId

if TYPE_CHECKING:
    from services.rollout.vllm.loading.synthetic import SyntheticVersion
    from trimaran.host.device import Device
    from weights.memory.shadow import Shadow

logger = logging.getLogger(__name__)

CHUNK_SECONDS = 1.0
"""A completion that goes on is passed on about this often."""
SUBMIT_SECONDS = 20.0
"""For vLLM to take a request or its end, before its core has done anything with it."""


class VllmEngine(Engine):
    reports_experts = True
    spans_hosts = True
    adds_adapters = True
    takes_turns = True
    sleeps = True

    def __init__(
        self,
        config: RunConfig,
        device: Device,
        place: HostPlace = ONE_HOST,
    ) -> None:
        self._config = config
        self._device = device
        self._place = place
        self._executor: Any = None
        """vLLM's executor of the workers on a further host."""
        self._streams: set[VllmStream] = set()
        self._numbers = itertools.count()
        self._live: VersionId | None = None
        self._carried: dict[str, Any] = {}
        """What vLLM is given with every request, where versions have adapters."""
        self._shown = Shown()
        self._is_asleep = False
        # Submitting and pausing exclude each other, so that an update knows every sample. Code that needs
        # the workers' turn too takes that first: requests come in until the engine is paused.
        self._lock = asyncio.Lock()

    @property
    def stop_token_ids(self) -> frozenset[int]:
        return self._chat.stop_token_ids

    async def start(self) -> None:
        on_host = self._device.on_host
        check_environment(os.environ, self._device)
        set_environment(self._config, on_host)
        started = time.monotonic()
        with large_imports():
            from vllm.v1.engine.async_llm import AsyncLLM

        if is_npu(self._device):
            check_processor()
        if takes_images(self._config.model.path):
            do_without_torchvision(self._config.model.path)
        imported = time.monotonic()
        self._chat = ChatTokenizer.of(self._config, takes_images=True)
        self._turns = TurnTokenizer.of(self._config, self._chat)
        transfer, vllm_config = self._configure()
        with self._deadline():
            self.llm = AsyncLLM.from_vllm_config(vllm_config, disable_log_stats=True)
        # For `Sampling.stop` alone: other requests are not turned into text.
        self.llm.output_processor.tokenizer = self._chat.tokenizer
        self._workers = VllmWorkers(self.llm, transfer, self._config.trainer.sends_adapters)
        self._pulse = Pulse(self._workers.answer, self._config.frozen_timeout)
        start_timeout = self._config.start_timeout
        await self._workers.start(start_timeout)
        if on_host:
            await self._workers.compute_faster(start_timeout)
        if self._config.trainer.sends_adapters:
            from services.rollout.vllm.loading.adapters import POLICY

            self._carried = {"lora_request": POLICY}
            if on_host:
                await self._workers.install_fast_adapters(start_timeout)
        up = time.monotonic()
        left = max(1.0, start_timeout - (up - started))
        async with within(left, "vllm, probed with synthetic weights; raise start_timeout"):
            await self.probe()
        logger.info(
            "vllm is up: imports %.1f s, engine %.1f s, probe %.1f s",
            imported - started,
            up - imported,
            time.monotonic() - up,
        )

    async def follow(self) -> None:
        """On a further host: its workers, without a core, which take their orders from the first host's."""
        check_environment(os.environ, self._device)
        set_environment(self._config, self._device.on_host)
        os.environ[HOST_RANK] = str(self._place.rank)
        if is_npu(self._device):
            check_processor()
        if takes_images(self._config.model.path):
            do_without_torchvision(self._config.model.path)
        _, vllm_config = self._configure()
        from vllm.v1.executor import Executor

        make = Executor.get_class(vllm_config)
        # In a thread, as it waits for the other hosts; one that stays, as the workers end with it.
        self._starting = CallThread("the start of vllm's workers; raise start_timeout")
        timeout = self._config.start_timeout
        self._executor = await self._starting.wait(lambda: make(vllm_config), timeout)
        logger.info("vllm's workers on host %d of %d are up", self._place.rank, self._place.count)

    def _configure(self) -> tuple[str | None, Any]:
        """The weight-transfer engine, and vLLM's configuration of this host's part."""
        from vllm.engine.arg_utils import AsyncEngineArgs

        if self._device.on_host:
            inspect_models_here()
            share_device()
        # Here, too: an environment may hold our modules without their entry points.
        transfer = BACKEND if register() else None
        given = engine_arguments(self._config, self._device, transfer, self._place)
        args = AsyncEngineArgs(**given)
        if takes_images(self._config.model.path):
            from services.rollout.vllm.images import normalize_once

            normalize_once(args)
        if self._config.trainer.router.replay:
            keep_experts_of_merged_outputs()
        vllm_config = args.create_engine_config()
        if self._device.on_host:
            # vLLM chooses spawn here; a forked core has imported everything already.
            os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
        os.register_at_fork(after_in_child=_in_child)
        return transfer, vllm_config

    def _deadline(self) -> AbstractContextManager[None]:
        """The deadline of a start that waits for other hosts; vLLM's own does not reach all of it."""
        if self._place.count == 1:
            return nullcontext()
        timeout = self._config.start_timeout
        return alarm(
            timeout, f"the start of vllm on {self._place.count} hosts; raise start_timeout"
        )

    async def probe(self) -> None:
        """Before the first version. Raises InputError as `Probe.run` does."""
        from services.rollout.vllm.probe import probe_engine

        remedy = "report it, and use another version of vllm"
        if not is_eager(self._config, self._device):
            remedy = "set rollout.eager=true"
        await probe_engine(self.llm, self._config, self._load_synthetic, remedy)

    async def _load_synthetic(self, version: SyntheticVersion) -> None:
        async with self._workers.turn, self._lock:
            await self._pause()
            await self._workers.load(SYNTHETIC, version.description())
            await self.llm.resume_generation()

    @property
    def turns(self) -> TurnTokenizer:
        return self._turns

    def tokenize(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        return self._chat.tokenize(messages, tools)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        return self._chat.detokenize(token_ids)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        streams = await self._submit(request, _parts(request))
        try:
            async with aclosing(merge([self._read(request, one) for one in streams])) as events:
                async for event in events:
                    yield event
        finally:
            await self._end(streams)

    async def _read(
        self, request: GenerationRequest, stream: VllmStream
    ) -> AsyncGenerator[Event, None]:
        """One vLLM request, throttled to about one chunk a second and completion."""
        pending: dict[int, tuple[list[int], list[float]]] = defaultdict(lambda: ([], []))
        passed_on = time.monotonic()
        stops = StopTexts(request.sampling.stop, self.detokenize)
        cached = 0
        while stream.open:
            ended: list[Ended] = []
            said = await self._next(stream)
            cached = max(cached, said.num_cached_tokens or 0)
            for output in said.outputs:
                if output.index not in stream.open:
                    continue
                _check_end(output.finish_reason)
                if stream.cut(stops, output):
                    await self._abort(stream)
                pending[output.index][0].extend(output.token_ids)
                pending[output.index][1].extend(output.logprobs.logprobs)
                if output.finish_reason is not None:
                    stream.open.discard(output.index)
                    num_pending = len(pending[output.index][0])
                    experts = reported_experts(
                        self._config,
                        output,
                        len(request.prompt_token_ids),
                        stream.num_tokens(output.index) + num_pending,
                    )
                    ended.append(
                        Ended(stream.indices[output.index], output.finish_reason, *experts, cached)
                    )
            if not ended and time.monotonic() - passed_on < CHUNK_SECONDS:
                continue
            for sample, (token_ids, logprobs) in pending.items():
                for chunk in stream.chunks(sample, token_ids, logprobs):
                    yield chunk
            pending.clear()
            for event in ended:
                yield event
            passed_on = time.monotonic()

    async def _submit(
        self, request: GenerationRequest, parts: Sequence[dict[int, tuple[int, ...]]]
    ) -> list[VllmStream]:
        """A vLLM request for each of `parts`, and no other in between: the first takes the images along."""
        streams: list[VllmStream] = []
        async with hold(self._lock, self._config.rollout.idle_timeout, "a load of weights"):
            try:
                for starts in parts:
                    live = self._require_live()
                    stream = await self._add(request, starts, live, is_first=not streams)
                    streams.append(stream)
                # A load that has failed before its pause had not this lock, and did not know the last one.
                self._require_live()
            except BaseException:
                await self._end(streams)
                raise
        return streams

    def _require_live(self) -> VersionId:
        if self._live is None:
            raise BehindError("this replica holds no version; weight sync must bring one")
        return self._live

    async def _add(
        self,
        request: GenerationRequest,
        starts: dict[int, tuple[int, ...]],
        live: VersionId,
        is_first: bool,
    ) -> VllmStream:
        prefix = next(iter(starts.values()))
        token_ids = [*request.prompt_token_ids, *prefix]
        prompt = self._prompt(token_ids, request.images, is_first)
        given = {index: len(start) for index, start in starts.items()}
        stream = VllmStream(f"{request.number}-{next(self._numbers)}", given, live, prefix)
        params = self._sampling_params(request.sampling, len(starts), len(prefix))
        try:
            # Bounded: a load waits for the same lock.
            async with within(SUBMIT_SECONDS, "vllm, handed a request"):
                stream.collector = await self.llm.add_request(
                    stream.request_id, prompt, params, **self._carried
                )
        except _dead_error() as error:
            raise UnavailableError("the vllm engine is dead; its log says why") from error
        except (asyncio.CancelledError, DeadlineError):
            await self._abort(stream)
            raise
        self._streams.add(stream)
        return stream

    async def _end(self, streams: Sequence[VllmStream]) -> None:
        """Forget the streams, and end those in vLLM's core that are still open."""
        self._streams.difference_update(streams)
        if not self.llm.errored:
            await asyncio.gather(*(self._abort(stream) for stream in streams if stream.open))

    def _prompt(
        self, token_ids: list[int], images: PlacedImages | None, brings_images: bool
    ) -> Any:
        """What `AsyncLLM.add_request` takes. `token_ids`: expanded, with what a completion has already."""
        if images is None:
            from vllm.inputs import TokensPrompt

            return TokensPrompt(prompt_token_ids=token_ids)
        from services.rollout.vllm.images import prompt_with_images

        dtype = self._config.model.dtype if brings_images else None
        return prompt_with_images(token_ids, images, dtype)

    async def _abort(self, stream: VllmStream) -> None:
        """A core that does not take even this is found by the call that waits for its answers."""
        try:
            async with asyncio.timeout(SUBMIT_SECONDS):
                await self.llm.abort(stream.request_id)
        except TimeoutError:
            logger.warning("vllm did not take the end of request %s", stream.request_id)

    def _sampling_params(self, sampling: Sampling, num_samples: int, given: int) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            n=num_samples,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_tokens - given,
            stop_token_ids=sorted(self.stop_token_ids),
            # The sampled token's own one; a seed would leave the fast path.
            logprobs=0,
            flat_logprobs=True,
            stop=list(sampling.stop),
            detokenize=bool(sampling.stop),
            output_kind=RequestOutputKind.DELTA,
        )

    async def _next(self, stream: VllmStream) -> Any:
        try:
            return stream.collector.get_nowait() or await stream.collector.get()
        except _dead_error() as error:
            raise UnavailableError("the vllm engine is dead; its log says why") from error

    async def load_weights(self, shadow: Shadow, version: VersionId) -> float:
        try:
            async with self._workers.turn:
                return await self._load(shadow, version)
        except BaseException as error:
            # Also when it is cut off: how far the core has come with it is unknown. It stays paused with
            # half a version, of which no token may be seen.
            self._end_streams(f"version {version} failed to load on this replica")
            if not isinstance(error, Exception):
                raise
            raise TransferError(f"version {version} did not load into vllm: {error!r}") from error

    async def _load(self, shadow: Shadow, version: VersionId) -> float:
        description = shadow.description()
        # Without a live version it is unknown what would be written over: after a failure, or a sleep.
        may_write = self._live is not None and self._shown.has_all(shadow.manifest)
        writes = self._workers.prepared_writes(shadow.path, description, may_write)
        async with writes as are_prepared, self._lock:
            self._shown.note_load(by_vllm=not are_prepared)
            started = await self._pause()
            await self._replace(shadow.path, description, version, are_prepared)
            return time.monotonic() - started

    async def _replace(
        self, path: str, description: dict[str, Any], version: VersionId, are_prepared: bool
    ) -> None:
        """What the pause holds, and the end of it."""
        await self._wake("weights")
        if are_prepared:
            await self._workers.make_writes()
        else:
            await self._workers.load(path, description)
        # After the load, which needs room of its own for a moment.
        await self._wake("kv_cache")
        self._is_asleep = False
        await self._pass_outputs()
        made = self._count_made()
        for stream in self._streams:
            stream.mark(made[stream.request_id], version)
        self._live = version
        await self.llm.resume_generation()

    async def sleep(self) -> None:
        """vLLM's sleep mode at level 2: weights, keys and values are dropped, for the next version lies in
        the shadow. On the host vLLM has no sleep mode, so keys and values alone give up their memory."""
        async with self._workers.turn, self._lock:
            self._end_streams("this replica has gone to sleep")
            # After a load that failed half of it may be awake, and vLLM takes it for asleep.
            await self._wake("weights")
            await self._wake("kv_cache")
            self._is_asleep = True
            if self._device.on_host:
                await self._pause()
                await self._workers.call("drop_cache")
            else:
                await self._workers.call("keep_parameters")
                await self.llm.sleep(level=2)

    async def _wake(self, what: str) -> None:
        """`what`: vLLM's tag, "weights" or "kv_cache"; the core goes on once it has both."""
        if not self._is_asleep:
            return
        if not self._device.on_host:
            await self.llm.wake_up(tags=[what])
            if what == "weights":
                await self._workers.call("put_parameters_back")
        elif what == "kv_cache":
            await self._workers.call("restore_cache")

    async def read_back(self, manifest: Manifest, ranges: Ranges) -> dict[int, str]:
        num_loads = self._shown.num_loads
        digests = await self._workers.read_back(manifest, ranges)
        self._shown.note_reading(manifest, digests, num_loads)
        return digests

    async def _pause(self) -> float:
        """vLLM's `pause_generation(mode="keep")` without the 20 ms that it sleeps in the end, lest
        outputs come late: `_pass_outputs` makes sure of those. Returns the time at which the core
        was asked."""
        core: Any = self.llm.engine_core
        renderer: Any = getattr(self.llm, "renderer", None)
        if hasattr(core, "pause_scheduler_async") and hasattr(renderer, "clear_mm_cache_async"):
            await renderer.clear_mm_cache_async()
            reported = time.monotonic()
            await core.pause_scheduler_async(mode="keep", clear_cache=True)
        else:
            reported = time.monotonic()
            await self.llm.pause_generation(mode="keep", clear_cache=True)
        return reported

    async def _pass_outputs(self) -> None:
        """Returns once every output that the core made before its pause reached its request.

        The core answered after it sent them, over the same socket, so they stand in the queue
        before the empty one that is put here.
        """
        from vllm.v1.engine import EngineCoreOutputs

        queue = self.llm.engine_core.outputs_queue
        queue.put_nowait(EngineCoreOutputs())
        while not queue.empty():  # noqa: ASYNC110  it is vLLM's queue and has no event
            await asyncio.sleep(0)

    def _count_made(self) -> dict[str, dict[int, int]]:
        """Request -> sample -> tokens made so far, for the samples that still run."""
        made: dict[str, dict[int, int]] = defaultdict(dict)
        for state in self.llm.output_processor.request_states.values():
            assert state.detokenizer is not None
            made[state.external_req_id][state.request_index] = state.detokenizer.num_output_tokens()
        return made

    def _end_streams(self, why: str) -> None:
        self._live = None
        for stream in self._streams:
            stream.collector.put(BehindError(why))

    @property
    def num_running(self) -> int:
        return self.llm.output_processor.get_num_unfinished_requests()

    def check(self) -> None:
        if self._executor is not None:
            if self._executor.is_failed:
                raise InternalError(
                    "a worker of vllm is dead on this host; its lines above say why"
                )
            return
        if self.llm.errored:
            hosts = self._place.count
            where = f"; it had workers on {hosts} hosts, and one may be gone" if hosts > 1 else ""
            raise InternalError(f"the vllm engine is dead; its own lines above say why{where}")
        self._pulse.check()

    async def close(self) -> None:
        if pulse := self.__dict__.pop("_pulse", None):
            pulse.close()
        # A reference that stays would have it shut down again when the interpreter ends.
        self.__dict__.pop("_workers", None)
        if vllm := self.__dict__.pop("llm", None):
            vllm.shutdown(timeout=5.0)
        if self._executor is not None:
            self._executor.shutdown()


def _parts(request: GenerationRequest) -> list[dict[int, tuple[int, ...]]]:
    """Completion index -> tokens that it has already, of each vLLM request."""
    starts = dict(request.starts)
    # n samples of one vLLM request share their prompt; several greedy ones it refuses.
    if any(starts.values()) or request.sampling.temperature == 0:
        return [{index: start} for index, start in starts.items()]
    if request.images is None or len(starts) == 1:
        return [starts]
    # vLLM copies what a request holds for each of its samples.
    first, *others = starts
    return [{first: ()}, dict.fromkeys(others, ())]


def _check_end(finish_reason: str | None) -> None:
    """vLLM ends a request so that it could not begin. Raises UnavailableError."""
    if finish_reason not in (None, "stop", "length"):
        raise UnavailableError(f"vllm gave a request up ({finish_reason}); its log says why")


def _in_child() -> None:
    """First thing in a forked core: end with us, and leave our event loop's signals alone."""
    signal.set_wakeup_fd(-1)
    die_with_parent(os.getppid(), signal.SIGKILL)


def _dead_error() -> type[Exception]:
    from vllm.v1.engine.exceptions import EngineDeadError

    return EngineDeadError
