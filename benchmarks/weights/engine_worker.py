"""What the benches add to vLLM's worker: its own load, without anything of ours."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from services.rollout.vllm.worker import WorkerExtension


class BenchExtension(WorkerExtension):
    load_config: Any
    """The worker's own."""

    def hold_local(self, folder: str) -> None:
        """Read the tensors into this process's private memory."""
        from safetensors.torch import load_file

        tensors = load_file(Path(folder) / "model.safetensors")
        self._local = {name: tensor.clone() for name, tensor in tensors.items()}

    def load_local(self) -> float:
        """vLLM's own reload from those tensors. Returns the seconds."""
        begin = time.perf_counter()
        self.model_runner.reload_weights(weights_iterator=iter(self._local.items()))
        self._pack_tied_head()
        return time.perf_counter() - begin

    def hold_shared(self, path: str, description: dict[str, Any]) -> None:
        """A shadow's tensors where they lie; those that it has in parts are put together here."""
        from services.rollout.vllm.loading.load import open_tensors

        model = self.model_runner.get_model()
        self._shared = dict(open_tensors(model, path, description))

    def load_shared(self) -> float:
        """As `load_local`, from a shadow's tensors."""
        begin = time.perf_counter()
        self.model_runner.reload_weights(weights_iterator=iter(self._shared.items()))
        self._pack_tied_head()
        return time.perf_counter() - begin

    def reload_file(self, folder: str) -> float:
        """vLLM's own reload from a folder's safetensors. Returns the seconds."""
        # The engine was started with random weights; a loader of files is asked for here.
        self.model_runner.load_config.load_format = "safetensors"
        begin = time.perf_counter()
        self.model_runner.reload_weights(weights_path=folder)
        self._pack_tied_head()
        return time.perf_counter() - begin

    def _pack_tied_head(self) -> None:
        """vLLM's reload leaves the tied head's packed copy as it was; without this it is wrong."""
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        with torch.no_grad():
            for module in self.model_runner.get_model().modules():
                if isinstance(module, ParallelLMHead):
                    module.quant_method.process_weights_after_loading(module)
