"""What runs inside vLLM's worker process: weights from a shadow, above all.

vLLM mixes `WorkerExtension` into its worker class (`worker_extension_cls`);
the engine calls its methods, and vLLM's own, by `attempt` with `collective_rpc`.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from services.rollout.read_back import Reader, run_slice
from services.rollout.vllm.settings import LOGPROBS_MODE
from trimaran.errors import InputError, InternalError
from trimaran.host.lifetime import die_with_parent
from weights.version.manifest import manifest_from_json

if TYPE_CHECKING:
    from services.rollout.vllm.loading.in_place import Writes

logger = logging.getLogger(__name__)


class WorkerExtension:
    """Mixed into vLLM's worker, whose own attributes the first three are."""

    model_runner: Any
    model_config: Any
    finish_weight_update: Any
    _reader: Reader
    _writes: Writes | None = None
    """Those that are being prepared."""
    _kept: dict[str, torch.nn.Parameter]
    """By name, while vLLM sleeps."""
    _cache_sizes: dict[torch.Tensor, int]
    """In bytes, of keys and values that were dropped."""

    def attempt(
        self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[bool, Any]:
        """(True, what `method` of this worker returns), or (False, the text of its error).

        An error must not leave a worker as an exception: vLLM raises at the first worker that
        failed and leaves the answers of those after it unread, for the next call to read.
        """
        try:
            return True, getattr(self, method)(*args, **kwargs)
        # Every kind of error, for none ends here: it is passed on, and `VllmWorkers` raises it.
        except Exception as error:
            logger.exception("%s failed in a worker of vllm", method)
            return False, f"{type(error).__name__}: {error}"

    def end_with_parent(self) -> None:
        die_with_parent(os.getppid(), signal.SIGKILL)

    def answer(self) -> None:
        """Shows that this worker takes calls."""

    def compute_faster(self) -> None:
        """On the host, before the first request; see `on_host`."""
        from services.rollout.vllm.on_host import install_norms, install_sampler

        # vLLM's second model runner has one sampler only.
        if inner := getattr(self.model_runner.sampler, "topk_topp_sampler", None):
            install_sampler(inner)
        install_norms(self.model_runner.get_model())

    def install_fast_adapters(self) -> None:
        """On the host, for a run with adapters; see `adapters`."""
        from services.rollout.vllm.loading.adapters import install_fast_adapters

        install_fast_adapters()

    def report_processed_logprobs(self) -> str:
        """Log-probabilities at the sampling temperature from here on. Returns what is in the way,
        "" when nothing is.

        vLLM-Ascend (0.23, 0.30rc2) makes its samplers without the engine's `logprobs_mode`, so
        they report raw ones. Both samplers read their mode at every step. vLLM's second model
        runner has one sampler only, which takes the engine's mode itself.
        """
        sampler = getattr(self.model_runner, "sampler", None)
        inner = getattr(sampler, "topk_topp_sampler", None)
        if sampler is None or not hasattr(sampler, "logprobs_mode"):
            return "model_runner.sampler has no logprobs_mode"
        if inner is None and sampler.logprobs_mode == LOGPROBS_MODE:
            return ""
        if inner is None or not hasattr(inner, "logprobs_mode"):
            return "model_runner.sampler.topk_topp_sampler has no logprobs_mode"
        sampler.logprobs_mode = inner.logprobs_mode = LOGPROBS_MODE
        return ""

    def load_shadow(self, path: str, description: dict[str, Any]) -> None:
        """For a vLLM without weight-transfer engines; see `load.load_shadow`."""
        from services.rollout.vllm.loading.load import load_shadow

        runner = self.model_runner
        load_shadow(runner.get_model(), self.model_config, runner.device, path, description)

    def begin_writes(self, path: str, description: dict[str, Any]) -> str:
        """A version is to be written into the parameters, or what changed of it, in the place of a load by
        vLLM; any before it is forgotten. Returns why it cannot be, "" when `prepare_writes` may follow."""
        from services.rollout.vllm.loading.load import open_writes

        self._writes = None
        try:
            self._writes = open_writes(self.model_runner.get_model(), path, description)
        except InternalError as error:
            return str(error)
        return ""

    def prepare_writes(self, seconds: float) -> tuple[str, bool]:
        """Why they cannot be made, and whether they are prepared; see `Writes.prepare`."""
        assert self._writes is not None, "no writes have begun"
        try:
            return "", self._writes.prepare(seconds)
        except (InternalError, InputError, torch.OutOfMemoryError) as error:
            self._writes = None
            return str(error), False

    def make_writes(self) -> None:
        """Once: those that are prepared."""
        writes, self._writes = self._writes, None
        assert writes is not None, "no writes are prepared"
        writes.make()

    def drop_writes(self) -> None:
        """Those that are prepared are not to be made."""
        self._writes = None

    def drop_cache(self) -> None:
        """The tensors stay the same objects, and those that see them, too: their memory alone goes."""
        self._cache_sizes = {
            tensor: tensor.untyped_storage().nbytes() for tensor in self.model_runner.kv_caches
        }
        for tensor in self._cache_sizes:
            tensor.untyped_storage().resize_(0)

    def restore_cache(self) -> None:
        for tensor, size in self._cache_sizes.items():
            tensor.untyped_storage().resize_(size)
            tensor.zero_()

    def keep_parameters(self) -> None:
        """Before vLLM goes to sleep."""
        self._kept = dict(self.model_runner.get_model().named_parameters())

    def put_parameters_back(self) -> None:
        """After it woke with weights: the same objects, over the same memory, whose values are to come.

        vLLM-Ascend 0.23 puts transposed views in the places of fused experts then, for callers that
        load them without a reload. A reload copies into what the layer computes with, and would not fit.
        """
        model = self.model_runner.get_model()
        for name, parameter in self._kept.items():
            path, _, last = name.rpartition(".")
            layer = model.get_submodule(path)
            if getattr(layer, last) is not parameter:
                setattr(layer, last, parameter)

    def pack_heads(self) -> None:
        """The last of every whole load, once the layerwise reload has ended, also where vLLM ran it."""
        from services.rollout.vllm.loading.in_place import pack
        from services.rollout.vllm.loading.modules import find_heads

        pack(find_heads(self.model_runner.get_model()))

    def write_adapters(self, path: str, description: dict[str, Any]) -> None:
        """After every whole load of a version that has some; see `adapters.write_adapters`."""
        from services.rollout.vllm.loading.adapters import write_adapters

        write_adapters(self.model_runner, path, description)

    def abandon_update(self) -> None:
        """Before an update, when the one before it did not end: this worker may have it open still."""
        if getattr(self, "_weight_update_active", False):
            self.finish_weight_update()
        from services.rollout.vllm.loading.load import end_reload

        # vLLM 0.23's own worker forgets an update that failed, with its reload half done.
        end_reload(self.model_runner.get_model(), self.model_config)

    def begin_read_back(self, manifest_json: dict[str, Any], ranges: list[list[int]]) -> None:
        """Any read-back before it is forgotten."""
        from services.rollout.vllm.loading.load import is_tied
        from services.rollout.vllm.loading.read_back import read_loaded

        self._reader = read_loaded(
            self.model_runner.get_model(),
            is_tied(self.model_config.hf_config),
            manifest_from_json(manifest_json),
            tuple((first, end) for first, end in ranges),
        )

    def go_on_reading_back(self, seconds: float) -> tuple[dict[int, str], bool]:
        """Digests by block number from about so many seconds, and whether there are no more."""
        with torch.no_grad():
            return run_slice(self._reader, seconds)
