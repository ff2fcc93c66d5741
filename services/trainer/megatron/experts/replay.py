"""Routers that choose the experts which the engine chose (rollout routing replay, arXiv 2510.11370).

A choice between two experts with nearly the same logit falls otherwise where kernels round otherwise.
One such token has another hidden state from there on, and so has what attends to it. So the
trainer's routers take the engine's choice. The weights of the chosen experts are their own: the
softmax of their logits, through which gradients flow.

megatron-core 0.16.1 has a `RouterReplay` of its own. It keeps what is to be replayed in lists, first in
first out, with a switch for all routers between forward and backward passes; that fits neither
a schedule that mixes both nor tokens without a choice. So ours stands in its place, and the choices of a
micro-batch travel with its layout: where a layer is computed again, they are the same ones.

Axes: n tokens of this rank, L layers of this rank, E experts of each, K of a token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayer

from services.trainer.megatron.attention.context import ContextSplit


def replay(
    scores_nE: torch.Tensor, own_nK: torch.Tensor, given_nK: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores and numbers [n, K] of the given experts, best first, and which tokens [n] have them.

    The others keep their own: what is given must be K different experts. `own`: of the best scores.
    """
    given_nK = given_nK.long()
    ordered = given_nK.sort(dim=-1).values
    is_known = (ordered[:, 0] >= 0) & (ordered[:, -1] < scores_nE.shape[1])
    is_known &= (ordered.diff(dim=-1) > 0).all(dim=-1)
    chosen_nK = torch.where(is_known[:, None], given_nK, own_nK)
    # In the order of an own choice: where it is the same one, so is the sum over them, bit for bit.
    values, order = scores_nE.gather(1, chosen_nK).topk(own_nK.shape[1], dim=1)
    return values, chosen_nK.gather(1, order), is_known


class _Choice:
    """Stands where a router of megatron-core keeps its `RouterReplay`, and is called as that is."""

    def __init__(self, counts: torch.Tensor) -> None:
        """`counts`: as in `RouterReplays`."""
        self.given_nK: torch.Tensor | None = None
        self._counts = counts

    def get_replay_topk(
        self,
        scores: torch.Tensor,
        topk: int,
        num_groups: int | None,
        group_topk: int | None,
        choose: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        values, own = choose(scores, topk, num_groups=num_groups, group_topk=group_topk)
        given, is_known = self.given_nK, None
        indices = own
        if given is not None:
            values, indices, is_known = replay(scores, own, given)
        if torch.is_grad_enabled():
            self._count(own, indices, is_known)
        return values, indices

    def _count(
        self, own: torch.Tensor, indices: torch.Tensor, is_known: torch.Tensor | None
    ) -> None:
        self._counts[0] += own.numel()
        if is_known is not None:
            self._counts[1] += is_known.sum() * own.shape[1]
            self._counts[2] += (indices[:, :, None] != own[:, None, :]).all(dim=-1).sum()


class RouterReplays:
    """The replay in one rank's stages. It counts while gradients are computed, each token once a layer.

    Example: RouterReplays(stages, device).take_metrics()
    """

    def __init__(self, stages: Iterable[torch.nn.Module], device: torch.device) -> None:
        self._counts = torch.zeros(3, dtype=torch.int64, device=device)
        """Choices, those that were replayed, and those of them that the router would not have made."""
        modules = chain.from_iterable(stage.modules() for stage in stages)
        layers = (module for module in modules if isinstance(module, TransformerLayer))
        for number, layer in enumerate(layers):
            if layer.is_moe_layer:
                self._attach(layer, number)

    def _attach(self, layer: Any, number: int) -> None:
        """`number`: among the layers of this rank."""
        choice = layer.mlp.router.router_replay = _Choice(self._counts)

        def give(layer: Any, _: object, inputs: dict[str, Any]) -> None:
            experts = inputs["packed_seq_params"].experts_nLK
            choice.given_nK = None if experts is None else experts[:, number]

        layer.register_forward_pre_hook(give, with_kwargs=True)

    def take_metrics(self) -> dict[str, float]:
        """Counts of all ranks since the last call. All ranks must call."""
        dist.all_reduce(self._counts)
        every, replayed, differing = self._counts.tolist()
        self._counts.zero_()
        metrics = {"trainer/experts/replay/share": replayed / every} if every else {}
        if replayed:
            metrics["trainer/experts/replay/differs/share"] = differing / replayed
        return metrics


def own_share(
    numbers_NLK: torch.Tensor, context: ContextSplit, config: TransformerConfig
) -> torch.Tensor:
    """The choices for the tokens that this rank's routers see: [n, L, K]."""
    own = context.own(numbers_NLK)
    if config.sequence_parallel:
        ranks = parallel_state.get_tensor_model_parallel_world_size()
        own = own.chunk(ranks)[parallel_state.get_tensor_model_parallel_rank()]
    return own
