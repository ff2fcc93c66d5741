"""What one trainer rank takes of its device, and of its host."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from trimaran.config.parallel import ParallelLayout, RankPlace
from trimaran.model.freezing import is_frozen
from trimaran.model.memory.head import Head
from trimaran.model.memory.layer import FP32, attention_input, layer_bytes, layer_input
from trimaran.model.memory.model import (
    ModelSizes,
    dense_parameters,
    expert_parameters,
    num_layers,
    vocabulary,
    whole_parameters,
)
from trimaran.model.memory.tower import feature_bytes, tower_bytes
from trimaran.model.memory.trained import (
    Trained,
    adapter_parameters,
    head_name,
    trained_parameters,
    trained_tower,
)
from trimaran.model.memory.work import Work

BF16 = 2
COMMUNICATORS = 3 * (400 << 20)
"""Bytes for each axis of a layout along which several ranks stand: on an accelerator it brings two to four groups, and
each group's communicator keeps buffers. HCCL: 2 x HCCL_BUFFSIZE, which is 200 MiB unless it is set (its documentation).
NCCL depends on links and channels: 544 and 688 MiB were seen on four A100 (github.com/NVIDIA/nccl/issues/964)."""
REFERENCE_FACTOR = 4
"""Times as many tokens in a pass of the reference (WITHOUT_GRADIENT of services/trainer/step/learner.py)."""


@dataclass(frozen=True, slots=True)
class RankChoices:
    """What of a configuration changes a rank's memory. Example: RankChoices(reference=True)"""

    reference: bool = False
    """The frozen initial policy is kept, for a KL term."""
    sequence_parallel: bool = False
    fp32_head: bool = False
    distributed_optimizer: bool = False
    offload: tuple[str, ...] = ()
    """As `trainer.offload`."""
    virtual_stages: int = 1
    on_host: bool = False
    """The rank computes on a CPU."""
    bf16_optimizer: bool = False
    """`trainer.optimizer: adamw_bf16`."""
    freeze: tuple[str, ...] = ()
    """Patterns over the names of what does not train (`trainer.freeze`)."""
    thawed: tuple[str, ...] = ()
    """Those of them whose parameters had trained in the run before (`trainer.load`): checkpoints hold these."""
    lora_rank: int = 0
    """Rank of the adapters, which then are all that trains; 0 for none."""
    lora_targets: tuple[str, ...] = ()
    recompute: bool | str = False
    """As `trainer.recompute`."""
    replayed_groups: int = 0
    """Groups of a step whose choices of experts are replayed."""
    replayed_epochs: int = 1
    """In each of which another data-parallel rank may have a group."""
    seen_groups: int = 0
    """Groups of a step whose prompts may be images."""
    takes_turns: bool = False
    """`run.pools: colocated`: the device is the rollout's between two steps."""


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Bytes. `rank_memory` makes it."""

    weights: int
    """In the model's dtype; with those of adapters."""
    trained: int
    """The part of them that trains."""
    gradients: int
    """float32, in the buffers of megatron-core's DistributedDataParallel."""
    main_weights: int
    """float32; none beside float32 weights. With a bfloat16 optimizer its compensation."""
    moments: int
    """AdamW's two."""
    reference: int
    """The frozen weights that a KL term compares with."""
    layers_token: float
    """Activations of all its layers, and of a vision tower that trains, for each packed token."""
    in_flight: float
    """Micro-batches whose activations are kept at a time; of some, those of a part of its layers."""
    batch_tokens: int
    """Packed tokens of one update on its data-parallel rank: no micro-batch has more."""
    working_token: float
    """Gradients inside one layer, for each packed token."""
    backward_token: float
    """The same in a backward pass, with what is computed again there."""
    output: Head | None
    """Last stage only."""
    compares: bool
    """With a reference, in passes of their own."""
    saved: int
    """In its file of a checkpoint, where it writes one: main weights and what the optimizer keeps, and what is
    frozen and had trained in the run before."""
    copied: int
    """On the host while a checkpoint is written: the copy out of which it is; nothing where another rank
    writes the same."""
    snapshot: int
    """On the host: the rank's share of the version that replicas fetch. Taken once, and written over."""
    offload: tuple[str, ...] = ()
    replayed: int = 0
    """On the host: the engine's choices of experts for a step, with `trainer.router.replay`."""
    features: int = 0
    """On the host: those of a step's images from end to end of each prompt, where the vision tower is frozen."""
    takes_turns: bool = False
    communicators: int = 0
    """Buffers of collectives on accelerators, about."""

    @property
    def sure(self) -> int:
        """At an update, which does not depend on how much trains at a time."""
        return self.weights + self.gradients + self.optimizer + self.reference

    @property
    def optimizer(self) -> int:
        return self.main_weights + self.moments

    @property
    def host_optimizer(self) -> int:
        """On the host, where it waits between updates."""
        return self.optimizer if "optimizer" in self.offload else 0

    @property
    def away(self) -> int:
        """The most that waits on the host: of one that takes turns all but gradients, which have no memory
        meanwhile."""
        return self.sure - self.gradients if self.takes_turns else self.host_optimizer

    @property
    def resident(self) -> int:
        """What is on the device all the time."""
        gradients = self.gradients if "gradients" in self.offload else 0
        return self.sure - self.host_optimizer - gradients

    def activations(self, tokens: int) -> int:
        return round(self.layers_token * min(self.in_flight * tokens, self.batch_tokens))

    def logits(self, tokens: int) -> int:
        return self.output.logits(tokens) if self.output else 0

    @property
    def head(self) -> int:
        return self.output.fixed if self.output else 0

    def passing(self, tokens: int) -> int:
        """Beside `resident`, at the highest point of a step: where a backward pass begins, in a pass of
        the reference, or where the optimizer is back from the host."""
        compared = min(REFERENCE_FACTOR * tokens, self.batch_tokens)
        training = self.activations(tokens) + max(
            self.logits(tokens) + self.head,
            round(self.backward_token * tokens),
        )
        # A layer's numbers are gone when there are logits.
        inference = max(round(self.working_token * compared), self.logits(compared) + self.head)
        away = self.sure - self.resident
        return max(training + away - self.host_optimizer, inference if self.compares else 0, away)

    def peak(self, tokens: int) -> int:
        """The device's peak with micro-batches of so many packed tokens."""
        return self.resident + self.communicators + self.passing(tokens)

    def largest(self, room: int) -> int:
        """The most tokens of a micro-batch with which the peak is within `room`; 0 where none are."""
        return bisect_right(range(1, self.batch_tokens + 1), room, key=self.peak)


def rank_memory(
    model: ModelSizes,
    place: RankPlace,
    work: Work,
    choices: RankChoices = RankChoices(),
) -> RankMemory:
    """Example: rank_memory(model, layout.place(0), work).peak(tokens=4096)"""
    dense, experts = dense_parameters(model, place), expert_parameters(model, place)
    count, size, layers = dense + experts, model.number_bytes, num_layers(model, place)
    trained = Trained(dense, experts)
    if choices.freeze:
        trained = trained_parameters(model, place, choices.freeze, choices.virtual_stages)
    if choices.lora_rank:
        adapters = adapter_parameters(model, place, choices.lora_rank, choices.lora_targets)
        trained = Trained(adapters, 0)
        count += adapters
    main = FP32 if size < FP32 else 0
    if choices.bf16_optimizer:
        main = BF16
    parts = layer_bytes(model, place.layout, work, choices.sequence_parallel, choices.on_host)
    layer = kept = backward = parts.total
    if choices.recompute == "selective":
        backward += parts.attention
        kept += attention_input(model, place.layout) - parts.attention
    elif choices.recompute:
        # Where its MLP, the last part, has its gradients, or its attention, when the MLP has nothing any more.
        backward += max(parts.mlp, parts.attention - parts.mlp)
        kept = layer_input(model, place.layout, choices.sequence_parallel)
    of_layers = layers * kept
    if place.pipeline == 0 and not choices.lora_rank and trained_tower(model, choices.freeze):
        of_layers += tower_bytes(model, work)
    updated = _updated(trained, place) if choices.distributed_optimizer else sum(trained)
    norm = size * model.facts.hidden_size / place.layout.context if place.is_last_stage else 0
    saved = (4 * BF16 if choices.bf16_optimizer else 3 * FP32) * updated
    if choices.thawed:  # with the distributed optimizer on each rank, too
        others = trained_parameters(model, place, choices.thawed, choices.virtual_stages)
        saved += size * (dense + experts - sum(others))
    return RankMemory(
        weights=size * count,
        trained=size * sum(trained),
        gradients=FP32 * sum(trained),
        main_weights=main * updated,
        moments=2 * (BF16 if choices.bf16_optimizer else FP32) * updated,
        reference=size * count if choices.reference and not choices.lora_rank else 0,
        layers_token=of_layers + norm,
        in_flight=_in_flight(place, choices.virtual_stages),
        batch_tokens=work.batch_tokens,
        working_token=layer,
        backward_token=backward,
        output=_head(model, place, work, choices),
        compares=choices.reference,
        saved=saved,
        copied=saved if choices.distributed_optimizer or place.sends else 0,
        snapshot=size * _sent(model, place),
        offload=choices.offload,
        replayed=_replayed(model, place, work, choices),
        features=_features(model, place, work, choices),
        takes_turns=choices.takes_turns,
        communicators=0 if choices.on_host else COMMUNICATORS * _num_axes(place.layout),
    )


def _num_axes(layout: ParallelLayout) -> int:
    """Those along which several ranks stand."""
    axes = (layout.tensor, layout.context, layout.pipeline, layout.data)
    return sum(size > 1 for size in (*axes, layout.expert, layout.expert_tensor))


def _sent(model: ModelSizes, place: RankPlace) -> int:
    """Parameters that replicas fetch from this rank."""
    sent = expert_parameters(model, place) if place.sends_experts else 0
    if place.sends_dense:
        sent += dense_parameters(model, place)
        sent -= whole_parameters(model, place) if place.tensor else 0
    return sent


def _in_flight(place: RankPlace, virtual_stages: int) -> float:
    """The first stage as many as there are stages (1F1B: PipeDream-Flush, arXiv 2006.09503). With several
    stages a rank (interleaved: arXiv 2104.04473), as megatron-core warms up, in parts of a rank's layers."""
    ranks, after = place.layout.pipeline, place.layout.pipeline - place.pipeline - 1
    if virtual_stages == 1:
        return after + 1
    return (2 * after + (virtual_stages - 1) * ranks + 1) / virtual_stages


def _replayed(model: ModelSizes, place: RankPlace, work: Work, choices: RankChoices) -> int:
    """In its own layers those of the groups that it computes, once more those of an update where they are
    packed, and on rank 0 all of them (services/trainer/megatron/experts/shared_experts.py)."""
    tokens = choices.replayed_groups * work.group_tokens
    if not tokens:
        return 0
    data = place.layout.data
    own = tokens * min(choices.replayed_epochs, data) // data + min(work.batch_tokens, tokens)
    whole = tokens * model.facts.num_layers if place.rank == 0 else 0
    return model.facts.choice_bytes * (num_layers(model, place) * own + whole)


def _features(model: ModelSizes, place: RankPlace, work: Work, choices: RankChoices) -> int:
    """Bytes of the features of the groups that it computes (services/trainer/megatron/vision/kept_features.py)."""
    trains = not choices.lora_rank and trained_tower(model, choices.freeze)
    if place.pipeline or trains:
        return 0
    data = place.layout.data
    groups = -(-choices.seen_groups * min(choices.replayed_epochs, data) // data)
    return groups * work.prompt * feature_bytes(model)


def _updated(trained: Trained, place: RankPlace) -> int:
    """Parameters whose optimizer the rank has, of those that others hold as well."""
    layout = place.layout
    same = layout.data * layout.context
    experts = -(-trained.experts * layout.expert_parts // (same * layout.tensor))
    return -(-trained.dense // same) + experts


def _head(model: ModelSizes, place: RankPlace, work: Work, choices: RankChoices) -> Head | None:
    """On the last stage only."""
    if not place.is_last_stage:
        return None
    return Head(
        size=model.number_bytes,
        hidden=model.facts.hidden_size,
        rows=vocabulary(model, place),
        trained=work.trained / place.layout.context,
        fp32=choices.fp32_head and model.number_bytes < FP32,
        is_frozen=bool(choices.lora_rank) or is_frozen(head_name(model), choices.freeze),
    )
