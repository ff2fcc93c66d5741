"""A small engine on plain transformers, for debugging and for runs that must repeat bitwise.

A group is a batch of its own and its tokens depend on nothing but weights,
prompt, `sampling.seed`, the group's number and each completion's index: not on
the attempt, nor on what else runs. All computing happens in one thread.

Axes: B completions of the batch, L positions (prompt, start, new tokens), V vocabulary.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from services.rollout.chat import ChatTokenizer
from services.rollout.engine import Engine, Event, GenerationRequest
from services.rollout.transformers.batch import DecodeBatch
from services.rollout.transformers.parameters import find_parameter
from services.rollout.turns.stop_texts import StopTexts
from services.rollout.turns.tokenizer import TurnTokenizer
from trimaran.config import RunConfig
from trimaran.errors import BehindError, TransferError
from trimaran.host.call_waits import within
from trimaran.types import Manifest, Message, Ranges, Tool, VersionId

if TYPE_CHECKING:
    import torch

    from trimaran.host.device import Device
    from weights.memory.changes import Changes
    from weights.memory.shadow import Shadow

T = TypeVar("T")

CHUNK_SECONDS = 1.0
"""A group that goes on is passed on about this often."""

Work = tuple[Callable[[], Any], "Future[Any]"]
"""What the computing thread does between two decoding steps."""


class TransformersEngine(Engine):
    takes_turns = True
    sleeps = True

    def __init__(self, config: RunConfig, device: Device) -> None:
        self._config = config
        self._device = device
        self._computing = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self._work: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self._live: VersionId | None = None
        self._loading: object | None = None
        """The load that is waited for. One that was given up must not take its version live."""
        self._outcome = threading.Lock()
        """Held for moments: a load is either given up or through."""
        self._num_loads = 0
        self._shapes: dict[torch.nn.Parameter, torch.Size] = {}
        """The sizes of the parameters, while it sleeps."""
        self._batches: set[DecodeBatch] = set()

    @property
    def stop_token_ids(self) -> frozenset[int]:
        return self._chat.stop_token_ids

    async def start(self) -> None:
        self._chat = ChatTokenizer.of(self._config)
        self._turns = TurnTokenizer.of(self._config, self._chat)
        async with within(self._config.start_timeout, "the start of the transformers engine"):
            await asyncio.get_running_loop().run_in_executor(self._computing, self._build)

    def _build(self) -> None:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        torch.set_num_threads(self._config.rollout.threads)
        self._device.activate()
        self._place = self._device.torch_device()
        with torch.device(self._place):
            # Random weights: version 0 arrives by weight sync like every other.
            self._model = AutoModelForCausalLM.from_config(
                AutoConfig.from_pretrained(self._config.model.path, local_files_only=True),
                dtype=getattr(torch, self._config.model.dtype),
            ).eval()

    @property
    def turns(self) -> TurnTokenizer:
        return self._turns

    def tokenize(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        return self._chat.tokenize(messages, tools)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        return self._chat.detokenize(token_ids)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Event | Exception | None] = asyncio.Queue()
        stops = StopTexts(request.sampling.stop, self.detokenize)
        batch = DecodeBatch(request, self.stop_token_ids, stops)
        self._batches.add(batch)

        def put(event: Event | Exception | None) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        work = self._computing.submit(self._run, batch, put)
        try:
            while (event := await events.get()) is not None:
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            batch.cancelled = True
            self._batches.discard(batch)
            work.cancel()

    def _run(self, batch: DecodeBatch, put: Callable[[Event | Exception | None], None]) -> None:
        import torch

        try:
            with torch.no_grad():
                self._decode(batch, put)
            put(None)
        except Exception as error:
            put(error)

    def _decode(self, batch: DecodeBatch, put: Callable[[Event | None], None]) -> None:
        passed_on = time.monotonic()
        cache, num_loads = None, -1
        while batch.num_open and not batch.cancelled:
            self._do_work()
            if self._live is None:
                raise BehindError("this replica holds no version; weight sync must bring one")
            if num_loads != self._num_loads:
                cache, num_loads = None, self._num_loads
            logits_BV, cache = self._forward(batch, cache)
            has_ended = batch.take(logits_BV, self._live)
            if has_ended or time.monotonic() - passed_on >= CHUNK_SECONDS:
                for event in batch.events():
                    put(event)
                passed_on = time.monotonic()

    def _forward(self, batch: DecodeBatch, cache: Any) -> tuple[torch.Tensor, Any]:
        """Logits of the last position [B, V] on the host, and the cache.

        Without a cache everything before that position is computed again.
        """
        tokens_BL, mask_BL = batch.tokens()
        positions_BL = (mask_BL.cumsum(-1) - 1).clamp_(min=0)
        first = 0 if cache is None else tokens_BL.shape[1] - 1
        output = self._model(
            input_ids=tokens_BL[:, first:].to(self._place),
            attention_mask=mask_BL.to(self._place),
            position_ids=positions_BL[:, first:].to(self._place),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1].float().cpu(), output.past_key_values

    async def load_weights(self, shadow: Shadow, version: VersionId) -> float:
        self._loading = load = object()
        try:
            return await self._between_steps(lambda: self._load(shadow, version, load))
        except BaseException:
            with self._outcome:
                self._loading = self._live = None
            raise

    def _load(self, shadow: Shadow, version: VersionId, load: object) -> float:
        started = time.monotonic()
        live, self._live = self._live, None
        self._num_loads += 1
        try:
            for parameter, shape in self._shapes.items():
                parameter.data = parameter.new_empty(shape)
            self._shapes = {}
            if live is not None and shadow.changes is not None:
                _write_changes(self._model, shadow.manifest, shadow.changes)
            else:
                _copy_weights(self._model, shadow)
        except Exception as error:
            raise TransferError(
                f"version {version} did not load into transformers: {error}"
            ) from error
        with self._outcome:
            if self._loading is not load:
                raise TransferError(f"version {version} loaded after it was given up")
            self._live = version
        return time.monotonic() - started

    async def sleep(self) -> None:
        await self._between_steps(self._drop_weights)

    def _drop_weights(self) -> None:
        """The groups under way end at their next step, and their keys and values with them."""
        self._live = None
        if not self._shapes:
            self._shapes = {parameter: parameter.shape for parameter in self._model.parameters()}
        for parameter in self._shapes:
            parameter.data = parameter.new_empty(0)

    async def read_back(self, manifest: Manifest, ranges: Ranges) -> dict[int, str]:
        from services.rollout.read_back import SLICE_SECONDS, join, read_by_name, run_slice

        # The parameters are what it computes with; a tied output layer is the embedding's.
        reader = read_by_name(lambda name: find_parameter(self._model, name).own, manifest, ranges)
        found: list[dict[int, str]] = []
        ended = False
        while not ended:
            digests, ended = await self._between_steps(lambda: run_slice(reader, SLICE_SECONDS))
            found.append(digests)
        return join(manifest, ranges, found)

    async def _between_steps(self, function: Callable[[], T]) -> T:
        """What has not begun when its caller stops waiting is not done any more."""
        done: Future[T] = Future()
        self._work.put((function, done))
        # A running group does it between two steps; an idle thread does it at once.
        self._computing.submit(self._do_work)
        return await asyncio.wrap_future(done)

    def _do_work(self) -> None:
        """No more than is there now: what follows a slice of a long work waits for a step."""
        for _ in range(self._work.qsize()):
            try:
                function, done = self._work.get_nowait()
            except queue.Empty:
                return
            if not done.set_running_or_notify_cancel():
                continue
            try:
                done.set_result(function())
            except Exception as error:
                done.set_exception(error)

    @property
    def num_running(self) -> int:
        return sum(batch.num_open for batch in self._batches)

    def check(self) -> None:
        """Nothing of this engine can die alone: a failure in its thread ends the request."""

    async def close(self) -> None:
        self._computing.shutdown(wait=False, cancel_futures=True)


def _copy_weights(model: torch.nn.Module, shadow: Shadow) -> None:
    import torch

    missing = {parameter: parameter.numel() for parameter in model.parameters()}
    with torch.no_grad():
        for name, tensor in shadow.tensors():
            held = find_parameter(model, name)
            held.own.copy_(tensor)
            missing[held.parameter] -= tensor.numel()
    if lacking := sorted(name for name, one in model.named_parameters() if missing[one]):
        raise ValueError(f"the version lacks {', '.join(lacking)}, or a part of it")


def _write_changes(model: torch.nn.Module, manifest: Manifest, changes: Changes) -> None:
    import torch

    with torch.no_grad():
        for changed in changes.tensors(manifest.tensors):
            parameter = find_parameter(model, changed.info.name).own
            positions, values = (
                part.to(parameter.device) for part in (changed.positions, changed.values)
            )
            parameter.view(-1).index_copy_(0, positions.long(), values.to(parameter.dtype))
