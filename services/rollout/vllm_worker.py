"""What runs inside vLLM's worker process: weights from a shadow, a faster sampler on the host.

vLLM mixes `WorkerExtension` into its worker class (`worker_extension_cls`);
the engine calls its methods with `collective_rpc`.
"""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Any

import torch

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """The kernel kills this process when its parent ends, SIGKILL included."""
    parent = os.getppid()
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def sample_inverse_cdf(logits: torch.Tensor) -> torch.Tensor:
    """One draw a row from softmax(logits), logits [N, V] -> int64 [N].

    The first token whose cumulative probability exceeds u * total, u uniform in
    [0, 1): one random number a row, where vLLM draws an exponential for every
    entry of the vocabulary.
    """
    cumulative_NV = logits.softmax(-1, dtype=torch.float32).cumsum_(-1)
    draw_N1 = torch.rand(len(logits), 1, dtype=torch.float32) * cumulative_NV[:, -1:]
    tokens_N1 = torch.searchsorted(cumulative_NV, draw_N1, right=True)
    return tokens_N1.clamp_(max=logits.shape[1] - 1).view(-1)


class WorkerExtension:
    """Mixed into vLLM's worker; the two attributes are the worker's own."""

    model_runner: object
    model_config: object

    def end_with_parent(self) -> None:
        die_with_parent()

    def install_fast_sampler(self) -> bool:
        """False when this vLLM has no such hook; its own sampler then stays."""
        from vllm.v1.sample.ops import topk_topp_sampler

        if not hasattr(topk_topp_sampler, "compiled_random_sample"):
            return False
        topk_topp_sampler.compiled_random_sample = sample_inverse_cdf
        return True

    def load_shadow(self, path: str, manifest_json: dict[str, Any]) -> None:
        """Load every tensor of the shadow by its Hugging Face name."""
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
        from vllm.model_executor.model_loader.reload import (
            finalize_layerwise_reload,
            initialize_layerwise_reload,
        )

        from services.weight_sync.shadow import open_shadow

        model = self.model_runner.get_model()  # type: ignore[attr-defined]
        with torch.no_grad(), torch.device(self.model_runner.device):  # type: ignore[attr-defined]
            initialize_layerwise_reload(model)
            names = {name for name, _ in model.named_parameters()}
            if self.model_config.hf_text_config.tie_word_embeddings:  # type: ignore[attr-defined]
                names.discard("lm_head.weight")
            try:
                loaded = model.load_weights(open_shadow(path, manifest_json))
            finally:
                # Also after a failure: it puts every layer back into a state that a next load needs.
                finalize_layerwise_reload(model, self.model_config)
            for module in model.modules():
                if isinstance(module, ParallelLMHead):
                    # Tied to the embedding, it is not reloaded itself; on the host it keeps a
                    # packed copy of the weight that would silently stay as it was.
                    module.quant_method.process_weights_after_loading(module)
        if missing := names - loaded:
            raise ValueError(f"the version lacks {', '.join(sorted(missing))}")
