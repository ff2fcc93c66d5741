"""The section `trainer`: ranks, batches, optimizer and adapters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from trimaran.config.parallel import ParallelLayout
from trimaran.config.section import Section
from trimaran.config.values import (
    MAX_BF16_BETA,
    Devices,
    LoraTarget,
    NonNegative,
    Positive,
    Recompute,
    Seconds,
    Threads,
)
from trimaran.host.device import DeviceName


class LoraSection(Section):
    """Adapters of low rank train, and the model's own weights do not. `lora: {rank: 16, alpha: 32}`"""

    rank: Annotated[int, Field(ge=1, le=4096)] = 16
    alpha: Annotated[float, Field(gt=0)] = 32.0
    """What an adapter adds is multiplied by alpha / rank."""
    targets: Annotated[tuple[LoraTarget, ...], Field(min_length=1)] = get_args(LoraTarget)
    """Matrices of each layer that have an adapter."""
    merged: bool = True
    """Each version is the model with its adapters added. Without: the frozen model and the adapters beside
    it, so that the adapters alone travel, and the engine adds what they give."""

    @model_validator(mode="after")
    def _each_once(self) -> LoraSection:
        if len(set(self.targets)) < len(self.targets):
            raise ValueError(f"targets: name each once (given: {', '.join(self.targets)})")
        return self


class RouterSection(Section):
    """What chooses a token's experts: losses on it, and whose choice counts.
    `router: {load_balancing: 0.001, replay: true}`"""

    load_balancing: Annotated[float, Field(ge=0)] = 0.0
    """Coefficient of the loss that grows where some experts get more tokens than others."""
    z_loss: Annotated[float, Field(ge=0)] = 0.0
    """Coefficient of the loss that grows with the size of the router's logits."""
    replay: bool = False
    """Send each token through the experts that the engine chose for it, so that a choice that would fall
    otherwise in the trainer makes no other log-probability. Their weights are the trainer's own."""


class TrainerSection(Section):
    """Ranks, batches and AdamW. `trainer: {data_parallel: 2, learning_rate: 1.0e-6}`"""

    device: DeviceName = "auto"
    devices: Devices = "auto"
    """Numbers (of GPUs: or UUIDs) of one device a rank (tensor_parallel x pipeline_parallel x
    data_parallel x context_parallel), rank 0's first; or auto: the first ones in sight."""
    tensor_parallel: Positive = 1
    pipeline_parallel: Positive = 1
    """Stages, each with a part of the layers."""
    pipeline_layers: tuple[NonNegative, ...] = ()
    """Layers of each stage, such as [13, 15]; without it all have equally many. The first stage also has the
    embedding and a vision tower, the last one the head: [0, 28] gives the tower ranks of its own."""
    virtual_stages: Positive = 1
    """Stages of each pipeline rank, which so has its layers in several parts: it waits less for the others, and
    sends more (the interleaved schedule)."""
    data_parallel: Positive = 1
    context_parallel: Positive = 1
    """Ranks that share the tokens of each micro-batch, and in the attention its heads: for completions
    that are too long for one rank."""
    expert_parallel: Positive = 1
    """Shares of the experts, of a model that has them. They lie on the ranks of the other kinds: the size
    divides tensor_parallel x context_parallel x data_parallel."""
    expert_tensor_parallel: Positive = 1
    """Ranks that hold a slice of each expert of a share, as tensor_parallel ranks do of the rest. It divides
    tensor_parallel."""
    sequence_parallel: bool = False
    """Tensor-parallel ranks share the tokens where they would all compute the same, at norms: less
    memory for activations."""
    distributed_optimizer: bool = False
    """The ranks of data and context parallelism, which hold the same parameters, share main weights and
    AdamW's moments: each updates a part and sends it to the others."""
    offload: tuple[Literal["optimizer", "gradients"], ...] = ()
    """What is not on the device all the time: the optimizer waits on the host but for each update; gradients
    have no memory between an update and the next backward pass."""
    labels: Mapping[str, str] = Field(default_factory=dict)
    """Labels of the pool of devices on which the ranks are placed; only the manager reads them."""
    threads: Threads = 1
    """CPU threads of one rank."""
    micro_batch_tokens: Positive = 4096
    """Packed tokens of one forward pass, prompts and completions, unless one completion or twice its
    prompt has more."""
    recompute: Recompute = False
    """true: keep a layer's input alone of its activations, and compute the others again in the backward
    pass, a third more work for much less memory. selective: compute the attention alone again."""
    freeze: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Parameters that stay as they are: patterns over their names in the Hugging Face folder, such as
    "model.embed_tokens.weight" or "*.mlp.gate.weight", where * is any text."""
    lora: LoraSection | None = None
    """Without it the model's own weights train."""
    router: RouterSection = RouterSection()
    fp32_head: bool = False
    """Logits of a bfloat16 model are computed in float32: nearer to what the engine samples from,
    where that computes so; slower, and with less memory for long batches."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-6
    warmup_steps: NonNegative = 0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """The course of the learning rate after the warm-up; the last two fall to min_learning_rate at run.steps."""
    min_learning_rate: Annotated[float, Field(ge=0)] = 0.0
    optimizer: Literal["adamw", "adamw_bf16"] = "adamw"
    """adamw_bf16 keeps weights, moments and a compensation for rounding in bfloat16: 12 bytes a
    parameter instead of 18. For models in bfloat16."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    epsilon: Annotated[float, Field(gt=0)] = 1e-8
    clip_grad: Annotated[float, Field(gt=0)] = 1.0
    max_nonfinite_steps: Positive = 3
    """Steps in a row with numbers that are not finite, after which the run ends."""
    step_timeout: Seconds = 1800
    """A step, or any other call of the trainer, that takes longer ends the run."""
    save_timeout: Seconds = 600
    """A checkpoint that takes longer is given up, and training goes on."""
    load: Path | None = None
    """A new run begins with the weights of this checkpoint: a folder such as
    runs/first/checkpoints/step-00100, or one in which there is `checkpoints/`, for its newest. It may be of
    any layout. The reference model is that of model.path all the same."""
    load_optimizer: bool = True
    """With AdamW's moments and their count. false: the weights of `load` alone."""

    @model_validator(mode="after")
    def _sequence_needs_tensor(self) -> TrainerSection:
        if self.sequence_parallel and self.tensor_parallel == 1:
            raise ValueError(
                "sequence_parallel: tensor-parallel ranks share the tokens, and tensor_parallel is 1;"
                " leave it out"
            )
        return self

    @model_validator(mode="after")
    def _stages_need_ranks(self) -> TrainerSection:
        if self.virtual_stages > 1 and self.pipeline_parallel == 1:
            raise ValueError(
                "virtual_stages: they alternate between the ranks of a pipeline, and pipeline_parallel is"
                " 1; leave it out"
            )
        return self

    @model_validator(mode="after")
    def _each_stage_has_its_layers(self) -> TrainerSection:
        layers = self.pipeline_layers
        if not layers:
            return self
        if len(layers) != self.pipeline_parallel:
            raise ValueError(
                f"pipeline_layers: {len(layers)} numbers of layers, and pipeline_parallel is"
                f" {self.pipeline_parallel}; give one for each stage"
            )
        if 0 in layers[1:-1]:
            raise ValueError(
                f"pipeline_layers: stage {layers.index(0, 1)} would hold nothing; only the first stage, which"
                " has the embedding, and the last one, which has the head, can be without layers"
            )
        if self.virtual_stages > 1:
            raise ValueError(
                "pipeline_layers: with virtual_stages all stages have equally many layers; leave out one of"
                " the two"
            )
        return self

    @model_validator(mode="after")
    def _optimizer_needs_others(self) -> TrainerSection:
        if self.distributed_optimizer and self.data_parallel * self.context_parallel == 1:
            raise ValueError(
                "distributed_optimizer: data- and context-parallel ranks share the optimizer, and both"
                " sizes are 1; leave it out"
            )
        return self

    @model_validator(mode="after")
    def _experts_divide_ranks(self) -> TrainerSection:
        sizes = self.tensor_parallel, self.context_parallel, self.data_parallel
        parts = self.expert_parallel * self.expert_tensor_parallel
        if self.tensor_parallel % self.expert_tensor_parallel:
            raise ValueError(
                f"expert_tensor_parallel: {self.expert_tensor_parallel} does not divide tensor_parallel"
                f" {self.tensor_parallel}"
            )
        if (ranks := math.prod(sizes)) % parts:
            slices = self.expert_tensor_parallel
            times = f" x expert_tensor_parallel {slices}" if slices > 1 else ""
            raise ValueError(
                f"expert_parallel: {self.expert_parallel}{times} does not divide tensor_parallel x"
                f" context_parallel x data_parallel ({' x '.join(map(str, sizes))} = {ranks})"
            )
        return self

    @model_validator(mode="after")
    def _trains_one_of_both(self) -> TrainerSection:
        if self.lora and self.freeze:
            raise ValueError("freeze: with lora all of the model is frozen; leave it out")
        return self

    @model_validator(mode="after")
    def _moments_fall(self) -> TrainerSection:
        if self.optimizer == "adamw_bf16":
            for name, beta in (("beta1", self.beta1), ("beta2", self.beta2)):
                if beta > MAX_BF16_BETA:
                    raise ValueError(
                        f"{name}: {beta:g} with optimizer adamw_bf16: a moment in bfloat16 would never"
                        f" fall; give at most {MAX_BF16_BETA:g}, or take optimizer adamw"
                    )
        return self

    @model_validator(mode="after")
    def _learning_rate_falls(self) -> TrainerSection:
        if self.min_learning_rate > self.learning_rate:
            raise ValueError(
                f"min_learning_rate ({self.min_learning_rate:g}) must not be more than learning_rate"
                f" ({self.learning_rate:g})"
            )
        return self

    @property
    def sends_adapters(self) -> bool:
        """Versions have adapters beside the frozen model."""
        return self.lora is not None and not self.lora.merged

    @property
    def layout(self) -> ParallelLayout:
        """How the ranks share the model and the batch."""
        return ParallelLayout(
            tensor=self.tensor_parallel,
            pipeline=self.pipeline_parallel,
            data=self.data_parallel,
            context=self.context_parallel,
            expert=self.expert_parallel,
            expert_tensor=self.expert_tensor_parallel,
            layers=self.pipeline_layers,
        )

    def checkpoint_file(self, rank: int) -> int | None:
        """The number of the file in a checkpoint that the rank writes; None where another one holds the
        same and writes it."""
        place = self.layout.place(rank)
        if self.distributed_optimizer:
            return rank
        return place.shard if place.sends else None
