"""What chooses a token's experts: the weight of its losses, and how many tokens each expert got.

Axes: L layers of the whole model, E experts of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.moe.router import TopKRouter

from services.trainer.megatron.tokens import PackedTokens
from trimaran.config import TrainerSection
from trimaran.model.folder import ModelFacts


def set_losses(
    config: TransformerConfig,
    section: TrainerSection,
    micro_batches: Sequence[PackedTokens],
    device: torch.device,
) -> None:
    """Before the micro-batches of an update go through a model of `config`: all ranks must call.

    megatron-core multiplies the loss of a micro-batch by the tokens that this rank sees of it, and would
    divide the gradient by all tokens in `finalize_model_grads`. Ours is not divided, so the coefficient is.
    """
    router = section.router
    if not router.load_balancing and not router.z_loss:
        return
    own = sum(len(packed.token_ids_N) for packed in micro_batches)
    count = torch.tensor([own], dtype=torch.int64, device=device)
    dist.all_reduce(count, group=parallel_state.get_data_parallel_group())
    # With sequence and context parallelism a rank sees its share of the tokens, in both factors.
    share = section.tensor_parallel * section.context_parallel / max(int(count.item()), 1)
    if router.load_balancing:
        config.moe_aux_loss_coeff = router.load_balancing * share
    if router.z_loss:
        config.moe_z_loss_coeff = router.z_loss * share


class LoadCounter:
    """Counts while gradients are computed: each token once, and once more where a bad number is looked for.

    Example: LoadCounter([model], facts, device).take()
    """

    def __init__(
        self, stages: Iterable[torch.nn.Module], facts: ModelFacts, device: torch.device
    ) -> None:
        shape = (facts.num_layers, facts.num_experts)
        self._loads_LE = torch.zeros(shape, dtype=torch.int64, device=device)
        for module in chain.from_iterable(stage.modules() for stage in stages):
            if isinstance(module, TopKRouter):
                module.register_forward_hook(self._count)

    def take(self) -> torch.Tensor:
        """The loads of all ranks since the last call, int64 on the host. All ranks must call."""
        dist.all_reduce(self._loads_LE)
        found = self._loads_LE.cpu().clone()
        self._loads_LE.zero_()
        return found

    def _count(self, router: Any, _: object, output: tuple[torch.Tensor, torch.Tensor]) -> None:
        if torch.is_grad_enabled():
            self._loads_LE[router.layer_number - 1] += output[1].sum(dim=0)
