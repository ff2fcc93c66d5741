"""What runs inside vLLM's worker process: weights from a shadow, a faster sampler on the host.

vLLM mixes `WorkerExtension` into its worker class (`worker_extension_cls`);
the engine calls its methods with `collective_rpc`.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import torch

from trimaran.launch.lifetime import die_with_parent


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

    model_runner: Any
    model_config: Any

    def end_with_parent(self) -> None:
        die_with_parent(os.getppid(), signal.SIGKILL)

    def install_fast_sampler(self) -> bool:
        """False when this vLLM has no such hook; its own sampler then stays."""
        from vllm.v1.sample.ops import topk_topp_sampler

        if not hasattr(topk_topp_sampler, "compiled_random_sample"):
            return False
        topk_topp_sampler.compiled_random_sample = sample_inverse_cdf
        return True

    def load_shadow(self, path: str, manifest_json: dict[str, Any]) -> None:
        """Load every tensor of the shadow by its Hugging Face name.

        Raises ValueError when the model has parameters that the shadow lacks; a later load
        of a whole version mends it.
        """
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
        from vllm.model_executor.model_loader.reload import (
            finalize_layerwise_reload,
            initialize_layerwise_reload,
        )

        from services.weight_sync.shadow import open_shadow

        model = self.model_runner.get_model()
        tied = self.model_config.hf_text_config.tie_word_embeddings
        with torch.no_grad(), torch.device(self.model_runner.device):
            initialize_layerwise_reload(model)
            try:
                missing = {name for name, _ in model.named_parameters()}
                missing -= model.load_weights(open_shadow(path, manifest_json))
                missing |= _half_loaded(model)
            finally:
                # Also after a failure: it gives every layer back what a next load starts from.
                finalize_layerwise_reload(model, self.model_config)
            for module in model.modules():
                if isinstance(module, ParallelLMHead):
                    # Tied to the embedding, it is not reloaded itself; on the host it keeps a
                    # packed copy of the weight that would silently stay as it was.
                    module.quant_method.process_weights_after_loading(module)
        if missing := missing - ({"lm_head.weight"} if tied else set()):
            raise ValueError(f"the version lacks {', '.join(sorted(missing))}")


def _half_loaded(model: torch.nn.Module) -> set[str]:
    """Layers that got some of their parts only, such as a gate without its up projection."""
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

    found = set()
    for name, layer in model.named_modules():
        info = get_layerwise_info(layer)
        # A vocabulary is padded, so it is never full.
        if info.can_load() and not isinstance(layer, VocabParallelEmbedding):
            total = info.load_numel_total or 0
            if 0 < info.load_numel < total:
                found.add(f"part of {name}")
    return found
