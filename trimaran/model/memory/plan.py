"""All that a run takes, and what of it cannot fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from trimaran.config import RunConfig
from trimaran.config.parallel import ParallelLayout
from trimaran.errors import InputError
from trimaran.model.folder import ModelFacts
from trimaran.model.memory.model import ModelSizes
from trimaran.model.memory.rank import RankChoices, RankMemory, rank_memory
from trimaran.model.memory.replica import ReplicaMemory, replica_memory
from trimaran.model.memory.work import Work, work_of

GIB = 1 << 30
RUNTIME = 375 << 20
"""Host memory of a trainer rank before it holds anything: Python, torch and megatron-core as loaded."""
VISION_RUNTIME = 90 << 20
"""What a vision tower adds: transformers' modules for it, and Pillow."""
EXPERT_KERNELS = 100 << 20
"""What oneDNN keeps on a CPU for the numbers of tokens that experts met in the first steps, in bfloat16. After
60 steps it was 0.65 GiB for SmolLM2's width."""
COPIES = 2
"""Copies of a step's choices of experts in the controller."""


@dataclass(frozen=True, slots=True)
class DeviceCapacity:
    """Bytes that there are; None where it is not known. Example: DeviceCapacity(trainer=80 * GIB, replica=80 * GIB)"""

    trainer: int | None = None
    """On each of the trainer's devices; None on a CPU."""
    replica: int | None = None
    host: int | None = None
    """Memory of the host on which all processes of the run are."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """`make_plan` makes it."""

    config: RunConfig
    model: ModelSizes
    work: Work
    tokens: int
    """Packed tokens of the largest micro-batch."""
    ranks: tuple[RankMemory, ...]
    """By rank."""
    replica: ReplicaMemory
    trains_on_host: bool
    """The trainer computes on a CPU."""
    rolls_on_host: bool

    @property
    def runtime(self) -> int:
        """Bytes that each trainer rank takes on the host as loaded."""
        vision = VISION_RUNTIME if self.model.facts.vision else 0
        return RUNTIME + vision + (EXPERT_KERNELS if self._compiles_for_experts else 0)

    @property
    def _compiles_for_experts(self) -> bool:
        return (
            self.trains_on_host
            and bool(self.model.facts.num_experts)
            and self.config.model.dtype == "bfloat16"
        )

    @property
    def replica_room(self) -> int | None:
        """For keys and values on each device of a replica; None where it depends on the device."""
        return round(self.config.rollout.kv_cache_gib * GIB) if self.rolls_on_host else None

    def sure_on_host(self) -> int:
        """What all processes take on one host whatever they compute, while a checkpoint is written."""
        return sum(self._own(rank) for rank in self.ranks) + self._replicas + self.controller

    def peak_on_host(self) -> int:
        passing = (rank.passing(self.tokens) for rank in self.ranks)
        features = sum(rank.features for rank in self.ranks)
        return self.sure_on_host() + features + (sum(passing) if self.trains_on_host else 0)

    def rank_room(self, room: DeviceCapacity) -> int | None:
        """For one rank's share of the model and of a micro-batch; on a CPU an equal part of what the
        others leave, for each rank."""
        if not self.trains_on_host:
            return room.trainer
        if room.host is None:
            return None
        fixed = self.sure_on_host() - sum(rank.resident for rank in self.ranks)
        return (room.host - fixed) // len(self.ranks)

    def largest_micro_batch(self, room: DeviceCapacity) -> int | None:
        """In tokens; 0 where none fits, None where the room is not known."""
        if (each := self.rank_room(room)) is None:
            return None
        largest = min(rank.largest(each) for rank in self.ranks)
        return largest if largest >= self.work.smallest else 0

    @property
    def controller(self) -> int:
        """What the controller holds of a step's choices of experts: as they came, and as the
        payloads that are stored and sent. All else that it holds of a step is a thirtieth of that."""
        if not self.config.trainer.router.replay:
            return 0
        tokens = self.config.run.groups_per_step * self.work.group_tokens
        facts = self.model.facts
        return COPIES * tokens * facts.num_layers * facts.choice_bytes

    @property
    def num_shadows(self) -> int:
        """With everything on one host. Replicas share one there; processes of their further hosts have
        their own."""
        section = self.config.rollout
        shares = self.config.weight_sync.transport == "auto"
        first = 1 if shares else section.replicas
        return first + section.replicas * (section.hosts - 1)

    @property
    def _replicas(self) -> int:
        shadows = self.num_shadows * self.replica.shadow
        one = 0
        if self.rolls_on_host:
            devices = self.config.rollout.tensor_parallel
            # Other engines take what they need as they go.
            room = (self.replica_room or 0) if self.config.rollout.engine == "vllm" else 0
            one += devices * (self.replica.weights + room)
        return shadows + self.config.rollout.replicas * one

    def _own(self, rank: RankMemory) -> int:
        kept = self.runtime + rank.snapshot + rank.replayed + rank.copied
        if self.trains_on_host:  # what has left the device has not gone far
            return kept + rank.host_optimizer + rank.resident
        return kept + rank.away


def make_plan(
    config: RunConfig,
    model: ModelSizes,
    trains_on_host: bool,
    rolls_on_host: bool,
    layout: ParallelLayout | None = None,
    thawed: tuple[str, ...] = (),
) -> MemoryPlan:
    """`layout`: another one than the configuration's. `thawed`: as in `RankChoices`."""
    layout, work = layout or config.trainer.layout, work_of(config)
    ranks = (
        rank_memory(
            model,
            layout.place(rank),
            work,
            choices_of(config, trains_on_host, thawed),
        )
        for rank in range(layout.num_ranks)
    )
    return MemoryPlan(
        config=config,
        model=model,
        work=work,
        tokens=work.tokens_of(config.trainer.micro_batch_tokens),
        ranks=tuple(ranks),
        replica=replica_memory(
            model,
            config.rollout.tensor_parallel,
            config.max_model_tokens,
            config.weight_sync.bucket_mib,
        ),
        trains_on_host=trains_on_host,
        rolls_on_host=rolls_on_host,
    )


def choices_of(config: RunConfig, on_host: bool, thawed: tuple[str, ...] = ()) -> RankChoices:
    return RankChoices(
        reference=config.algorithm.kl.coefficient > 0,
        sequence_parallel=config.trainer.sequence_parallel,
        fp32_head=config.trainer.fp32_head,
        distributed_optimizer=config.trainer.distributed_optimizer,
        offload=config.trainer.offload,
        virtual_stages=config.trainer.virtual_stages,
        on_host=on_host,
        bf16_optimizer=config.trainer.optimizer == "adamw_bf16",
        freeze=config.trainer.freeze,
        thawed=thawed,
        lora_rank=config.trainer.lora.rank if config.trainer.lora else 0,
        lora_targets=config.trainer.lora.targets if config.trainer.lora else (),
        recompute=config.trainer.recompute,
        replayed_groups=config.run.groups_per_step if config.trainer.router.replay else 0,
        replayed_epochs=config.algorithm.epochs if config.algorithm.shuffle else 1,
        seen_groups=config.run.groups_per_step,
        takes_turns=config.is_colocated,
    )


def refuse_impossible(plan: MemoryPlan, room: DeviceCapacity) -> None:
    """Raises InputError where weights, gradients and optimizer alone are more than there is: those are
    known to the byte. What is estimated refuses nothing."""
    if faults := [*_impossible(plan, room)]:
        raise InputError("\n".join(faults))


def find_faults(plan: MemoryPlan, room: DeviceCapacity) -> tuple[str, ...]:
    """What cannot fit, with what to change, a line each. Also where it is the estimated part."""
    if faults := (*_impossible(plan, room),):
        return faults
    return (*_too_long(plan, room), *_no_sequence(plan, room))


def _impossible(plan: MemoryPlan, room: DeviceCapacity) -> Iterator[str]:
    sure = max(rank.sure for rank in plan.ranks)
    if not plan.trains_on_host and room.trainer is not None and sure > room.trainer:
        yield (
            f"trainer: weights, gradients and optimizer of a rank take {gib(sure)}, and its device has"
            f" {gib(room.trainer)}; {_other_layout(plan, room.trainer)}"
        )
    weights = plan.replica.weights
    if not plan.rolls_on_host and room.replica is not None:
        given = plan.config.rollout.memory_fraction * room.replica
        if weights > given:
            yield (
                f"rollout: the weights take {gib(weights)} of each device of a replica, and"
                f" rollout.memory_fraction leaves {gib(given)}; raise rollout.tensor_parallel or"
                " rollout.memory_fraction"
            )
    on_host = plan.trains_on_host or plan.rolls_on_host
    if on_host and room.host is not None and (all_of_it := plan.sure_on_host()) > room.host:
        yield (
            f"this host: the run's processes take {gib(all_of_it)} there, and it has {gib(room.host)}"
            " without swap; lower rollout.replicas, rollout.kv_cache_gib or trainer.data_parallel, or use a larger one"
        )


def _other_layout(plan: MemoryPlan, room: int) -> str:
    """The fewest ranks with which it would fit, half of the room left for what is computed."""
    layout, facts = plan.config.trainer.layout, plan.model.facts
    sizes = [
        replace(layout, tensor=tensor, pipeline=pipeline, layers=())
        for tensor in _divisors(facts.num_heads, facts.num_kv_heads, facts.intermediate_size)
        for pipeline in _divisors(facts.num_layers)
    ]
    for size in sorted(sizes, key=lambda one: (one.num_ranks, one.pipeline)):
        tried = make_plan(plan.config, plan.model, False, plan.rolls_on_host, size)
        if max(rank.sure for rank in tried.ranks) <= room / 2:
            return f"set trainer.tensor_parallel={size.tensor} trainer.pipeline_parallel={size.pipeline}"
    return "no trainer.tensor_parallel and pipeline_parallel of this model would do; use larger devices"


def _divisors(*numbers: int) -> list[int]:
    return [n for n in range(1, min(numbers) + 1) if not any(number % n for number in numbers)]


def _too_long(plan: MemoryPlan, room: DeviceCapacity) -> Iterator[str]:
    each = plan.rank_room(room)
    peak = max(rank.peak(plan.tokens) for rank in plan.ranks)
    if each is None or peak <= each:
        return
    largest = plan.largest_micro_batch(room)
    if largest:
        remedy = f"set trainer.micro_batch_tokens={largest} or less"
    else:
        remedy = (
            f"no micro-batch of {plan.work.smallest} tokens fits, and one completion of the greatest"
            f" length may take so many; {_with_less(plan)}, or lower {plan.config.max_trained_key} or"
            " rollout.max_prompt_tokens"
        )
    yield (
        f"trainer: a rank takes up to {gib(peak)} with micro-batches of {plan.tokens} tokens, and there"
        f" are {gib(each)} for it; {remedy}"
    )


def _with_less(plan: MemoryPlan) -> str:
    if plan.trains_on_host:
        return "lower rollout.replicas or rollout.kv_cache_gib"
    return "raise trainer.tensor_parallel, context_parallel or pipeline_parallel"


def _no_sequence(plan: MemoryPlan, room: DeviceCapacity) -> Iterator[str]:
    given = key_value_room(plan, room)
    if given is not None and not plan.replica.sequences(given):
        key = "rollout.kv_cache_gib" if plan.rolls_on_host else "rollout.memory_fraction"
        yield (
            f"rollout: keys and values of one sequence of {plan.config.max_model_tokens} tokens take"
            f" {gib(plan.replica.sequence)}, and there are {gib(given)}; raise {key} or"
            f" rollout.tensor_parallel, or lower {plan.config.max_answer_key}"
        )


def key_value_room(plan: MemoryPlan, room: DeviceCapacity) -> int | None:
    """Bytes on each device of a replica, at most; None where its size is not known."""
    if plan.rolls_on_host:
        return plan.replica_room
    if room.replica is None:
        return None
    return plan.replica.key_value_room(int(plan.config.rollout.memory_fraction * room.replica))


def gib(number: float) -> str:
    """Example: gib(3 << 29) == "1.50 GiB" """
    return f"{number / GIB:,.2f} GiB"


def describe_model(model: ModelSizes) -> str:
    """Example: "7.62 billion parameters, bfloat16, 28 layers" """
    facts: ModelFacts = model.facts
    tower = f", a vision tower of {model.tower / 1e9:,.3g} billion" if facts.vision else ""
    return f"{model.matrices / 1e9:,.3g} billion parameters, {model.dtype}, {facts.num_layers} layers{tower}"
