"""The GPT model of megatron-core with our own layer spec and a packed forward pass."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import tensor_parallel
from megatron.core.models.gpt import GPTModel
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.moe.router import TopKRouter

from services.trainer.megatron.architecture import Architecture
from services.trainer.megatron.attention.attention import build_layout
from services.trainer.megatron.attention.context import ContextSplit
from services.trainer.megatron.attention.positions import Places, axis_of_channels, packed_positions
from services.trainer.megatron.attention.rope import inverse_frequencies
from services.trainer.megatron.experts.replay import own_share
from services.trainer.megatron.groups import context_group, tensor_group
from services.trainer.megatron.layer_spec import block_spec
from services.trainer.megatron.logprobs import OutputHead, vocab_parallel_outputs
from services.trainer.megatron.parameters.adapter_rules import is_adapter
from services.trainer.megatron.parameters.lora import attach
from services.trainer.megatron.parameters.mapping import mark_shards, parameters
from services.trainer.megatron.parameters.rules import Rules
from services.trainer.megatron.tokens import PackedTokens
from services.trainer.megatron.vision.vision import (
    Deepstack,
    ImageReader,
    SeenImages,
    add_deepstack,
    look,
    make_tower,
    own_places,
)
from services.trainer.step.outputs import TokenOutputs
from services.trainer.step.packing import GroupLengths
from services.trainer.step.prompt_images import PromptImages
from trimaran.config import RunConfig
from trimaran.config.parallel import RankPlace
from trimaran.errors import InputError

CPU_ROWS = 64
"""On a CPU packed tokens in bfloat16 come in multiples of it: for each number of rows that it meets, oneDNN compiles kernels and keeps them,
and a run meets another number in each batch. `findings/onednn_kept_kernels.sh` measures what they take."""


class PackedGPT(GPTModel):
    """One stage of a GPTModel that reads packed sequences; the last one answers with log-probabilities.

    A pipeline rank has one stage, or several (`virtual`) with the interleaved schedule.
    """

    def __init__(
        self,
        architecture: Architecture,
        rules: Rules,
        config: TransformerConfig,
        run: RunConfig,
        place: RankPlace,
        device: torch.device,
        images: ImageReader | None = None,
        virtual: int = 0,
    ) -> None:
        """`images`: of a model with a vision tower."""
        size = place.layout.tensor
        stage = virtual if run.trainer.virtual_stages > 1 else None
        stages = place.layout.stages(architecture.facts.num_layers, run.trainer.virtual_stages)
        own = stages[virtual * place.layout.pipeline + place.pipeline]
        spec: Any = block_spec(config, architecture.facts, own)
        super().__init__(
            config=config,
            transformer_layer_spec=spec,
            vocab_size=-(-architecture.facts.vocab_size // size) * size,
            max_sequence_length=architecture.facts.max_positions,
            pre_process=place.pipeline == virtual == 0,
            post_process=place.is_last_stage and virtual == run.trainer.virtual_stages - 1,
            share_embeddings_and_output_weights=architecture.facts.tied,
            position_embedding_type="none",
            vp_stage=stage,
        )
        layers: Any = self.decoder.layers
        self.first_layer = own.start
        """The layers of this stage, as the whole model counts."""
        self._tensor_rank = place.tensor
        self._context = ContextSplit(place.context, place.layout.context, context_group())
        self._padding = self._context.size * (size if config.sequence_parallel else 1)
        compiles = device.type == "cpu" and config.params_dtype == torch.bfloat16
        if compiles and not architecture.facts.num_experts:  # a router counts all tokens
            self._padding *= CPU_ROWS
        self._replayed = architecture.facts if run.trainer.router.replay else None
        self._vocab_size, self._rope = architecture.facts.vocab_size, architecture.rope
        self._head = OutputHead(run.rollout.temperature, tensor_group(), fp32=run.trainer.fp32_head)
        self._window = architecture.facts.window
        # More ranks than key/value heads share one each.
        self._num_key_heads = max(1, architecture.facts.num_kv_heads // size)
        _fix_biases(self)
        latent = architecture.facts.latent
        turned = latent.turned if latent else architecture.facts.head_dim
        frequencies = inverse_frequencies(architecture.rope, turned)
        self._inverse_frequencies = frequencies.to(device)
        self._window_frequencies = None
        if architecture.window_rope:
            self._window_frequencies = inverse_frequencies(architecture.window_rope, turned).to(
                device
            )
        self._embedding_scale = 1.0
        if architecture.facts.described.scaled_embeddings:
            root = torch.tensor(architecture.facts.hidden_size**0.5, dtype=config.params_dtype)
            self._embedding_scale = root.item()
        self._images = images
        if images and self.pre_process:
            self.visual = make_tower(run.model.path, config, device)
            for layer in layers:
                layer.register_forward_hook(add_deepstack, with_kwargs=True)
        self.first_expert = place.expert * (architecture.facts.num_experts // place.layout.expert)
        lora = run.trainer.lora
        self.adapters = attach(self, lora, config) if lora else {}
        """By the id of the weight that they change."""
        self._scale = lora.alpha / lora.rank if lora else 1.0
        mark_shards(self.named_weights(), rules)
        self.to(device)

    def named_weights(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """By megatron-core's names, with numbers of the whole model; also those of adapters."""
        return parameters(self, self.first_layer, self.first_expert)

    def published(self, weight: torch.Tensor) -> torch.Tensor:
        """As it leaves the trainer: one of `named_weights`, or a copy with its adapters added."""
        if adapters := self.adapters.get(id(weight)):
            return (weight.detach().float() + adapters.delta()).to(weight.dtype)
        return weight.detach()

    def separate_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """As they leave the trainer where an engine adds adapters: B times alpha / rank, for no one else
        applies that."""
        for name, weight in self.named_weights():
            is_b = is_adapter(name) and name.endswith(".b")
            yield name, weight.detach() * self._scale if is_b else weight.detach()

    def freeze(self, names: Container[str]) -> None:
        """Those weights take no gradient from here on."""
        for name, weight in self.named_weights():
            weight.requires_grad_(name not in names)

    def trained_weights(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Those of `named_weights` that take a gradient."""
        return ((name, one) for name, one in self.named_weights() if one.requires_grad)

    def outputs(self, packed: PackedTokens, entropy: bool = False) -> torch.Tensor | TokenOutputs:
        """Hidden states [N, 1, C] for the next stage, or on the last stage the outputs.

        With sequence or context parallelism N is this rank's share of the tokens.
        """
        token_ids, groups = _pad(packed, self._padding)
        images, places = self._read(packed.images)
        layout = build_layout(
            groups,
            self._inverse_frequencies,
            self.config.params_dtype,
            self._num_key_heads,
            self._rope.attention_factor,
            self._context,
            self._positions(groups, places) if places else None,
            self._window,
            self._window_frequencies,
        )
        layout.experts_nLK = self._chosen_experts(packed, len(token_ids))
        hidden = None  # what the stage before has sent is set by megatron-core's schedule
        if self.pre_process:
            hidden = self.embedding(input_ids=self._context.own(token_ids)[None], position_ids=None)
            if self._embedding_scale != 1.0:
                hidden = hidden * self._embedding_scale
            if images:
                hidden, layout.deepstack = self._look(images, hidden)
            if self.config.recompute_granularity and torch.is_grad_enabled():
                # A layer whose input needs no gradient would be recomputed without one for its weights.
                hidden.requires_grad_()
        hidden = self.decoder(hidden_states=hidden, attention_mask=None, packed_seq_params=layout)
        if not self.post_process:
            return hidden
        own, sources = self._context.find(packed.sources_M)
        if self.config.sequence_parallel:
            hidden = tensor_parallel.gather_from_sequence_parallel_region(hidden)
            hidden = hidden.squeeze(1).index_select(0, sources)
        else:
            hidden = hidden.squeeze(1).index_select(0, sources)
            hidden = tensor_parallel.copy_to_tensor_model_parallel_region(hidden)
        weight, first = self._output_weight()
        targets = packed.targets_M[own] - first
        outputs = vocab_parallel_outputs(hidden, weight, targets, self._head, entropy)
        return self._context.join(outputs, own, len(packed.targets_M))

    def _read(
        self, prompts: tuple[PromptImages, ...]
    ) -> tuple[SeenImages | None, Mapping[int, Places]]:
        """What the tower shall see, on its own stage, and the positions of prompts with images."""
        if not prompts:
            return None, {}
        if self._images is None:
            raise InputError(
                f"{prompts[0].prompt_id}: has images, and the model has no vision tower; use a model of"
                " Qwen2.5-VL or Qwen3-VL, or a dataset without images"
            )
        if not self.pre_process:
            return None, self._images.positions(prompts)
        images = self._images.read(prompts)
        return images, images.positions

    def _positions(
        self, groups: Sequence[GroupLengths], prompts: Mapping[int, Places]
    ) -> torch.Tensor:
        """[N, D / 2]"""
        axes = axis_of_channels(self._rope.sections, self._rope.interleaved)
        return packed_positions(groups, prompts)[axes].t()

    def _look(
        self, images: SeenImages, hidden: torch.Tensor
    ) -> tuple[torch.Tensor, Deepstack | None]:
        count = len(hidden)
        first = self._tensor_rank * count if self.config.sequence_parallel else 0
        owned = own_places(images.places_F, self._context, first, count)
        kept = self._images.kept if self._images else None
        return look(self.visual, images, hidden, owned, kept)

    def _chosen_experts(self, packed: PackedTokens, count: int) -> torch.Tensor | None:
        """Those of this rank's share of so many tokens, padding included; None unless they are replayed."""
        if packed.experts is None or self._replayed is None:
            return None
        padded, facts = packed.experts.padded(count - len(packed.token_ids_N)), self._replayed
        numbers = own_share(padded.numbers(facts), self._context, self.config)
        return numbers.to(packed.token_ids_N.device)

    def _output_weight(self) -> tuple[torch.Tensor, int]:
        """This rank's rows without the padding, and the vocabulary entry of the first."""
        weight: Any = (
            self.shared_embedding_or_output_weight()
            if self.share_embeddings_and_output_weights
            else self.output_layer.weight
        )
        first = self._tensor_rank * weight.shape[0]
        real = min(weight.shape[0], self._vocab_size - first)
        return weight if real == weight.shape[0] else weight[:real], first


def _fix_biases(model: torch.nn.Module) -> None:
    """The biases of routers are parameters that do not train, so that they are loaded, sent and saved as all the others
    are. megatron-core has them as buffers."""
    for module in model.modules():
        if isinstance(module, TopKRouter) and module.enable_expert_bias:
            bias: Any = module._buffers.pop("expert_bias")
            module.register_parameter("expert_bias", torch.nn.Parameter(bias, requires_grad=False))


def _pad(packed: PackedTokens, multiple: int) -> tuple[torch.Tensor, tuple[GroupLengths, ...]]:
    """Tokens up to a multiple: a prompt of its own, to which nothing attends."""
    missing = -len(packed.token_ids_N) % multiple
    if not missing:
        return packed.token_ids_N, packed.groups
    padding = GroupLengths(missing, (0,))
    return F.pad(packed.token_ids_N, (0, missing)), (*packed.groups, padding)
