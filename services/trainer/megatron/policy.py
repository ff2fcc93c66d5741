"""The policy on megatron-core: model, reference, gradient buffers and optimizer of one rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from torch.nn.utils import clip_grads_with_norm_

from services.trainer.checkpoints.model_files import load_tensors
from services.trainer.checkpoints.saved import specs_of
from services.trainer.megatron import schedule
from services.trainer.megatron.architecture import Architecture, attention_cost, image_cost
from services.trainer.megatron.bf16_adamw import STATE as BF16_STATE
from services.trainer.megatron.bf16_adamw import with_bf16_adamw
from services.trainer.megatron.experts.replay import RouterReplays
from services.trainer.megatron.experts.router import LoadCounter, set_losses
from services.trainer.megatron.experts.shared_experts import SharedExperts
from services.trainer.megatron.groups import from_last, gather_rows, sender_group, stage_group
from services.trainer.megatron.model import PackedGPT
from services.trainer.megatron.offload import HostCopies
from services.trainer.megatron.parameters.adapter_rules import adapter_rules
from services.trainer.megatron.parameters.family_rules import TOWER
from services.trainer.megatron.parameters.frozen import frozen_parameters
from services.trainer.megatron.parameters.lora import initial_adapters, switched_off
from services.trainer.megatron.parameters.main_weights import MainWeight, main_weights, mark_parts
from services.trainer.megatron.parameters.mapping import (
    check_names,
    list_parts,
    load_weights,
    model_rules,
    num_sources,
    tensor_specs,
)
from services.trainer.megatron.parameters.rules import Rules
from services.trainer.megatron.transformer_config import transformer_config
from services.trainer.megatron.vision.kept_features import KeptFeatures
from services.trainer.megatron.vision.vision import ImageReader
from services.trainer.step.batch import PackedBatch
from services.trainer.step.outputs import TokenLoss, TokenOutputs
from services.trainer.step.part_times import PartTimes
from services.trainer.step.updates import Update
from trimaran.config import RunConfig
from trimaran.errors import InputError, InternalError
from trimaran.model.memory.model import ModelSizes
from trimaran.model.memory.trained import patterns, trained_tower
from trimaran.model.tensor_names import is_adapter
from trimaran.types import Group, TensorInfo
from trimaran.wire import health_note
from weights.memory.host_memory import DTYPE_NAMES
from weights.sending.snapshot import TensorPart
from weights.version.grid import cut_tensors

MOMENTS = ("exp_avg", "exp_avg_sq")
WHOLE = "@0"
"""After the name of a part that begins with the first element, and here goes to the last one."""


class MegatronPolicy:
    """Implements `rank.ExportablePolicy`. Needs torch.distributed and megatron-core's parallel state;
    `backend.build_policy` sets both up and makes one."""

    def __init__(self, config: RunConfig, architecture: Architecture, device: torch.device) -> None:
        self.device = device
        self._place = config.trainer.layout.place(dist.get_rank())
        self.data_rank = self._place.data
        self.attention_cost = attention_cost(architecture.facts)
        self._config, self._architecture = config, architecture
        self._dtype: torch.dtype = getattr(torch, config.model.dtype)
        self._rules = model_rules(architecture)
        self._adapter_rules = adapter_rules(self._rules, config.trainer.lora)
        """Empty without `trainer.lora`."""
        self._all_rules = {**self._rules, **self._adapter_rules}
        tower = architecture.facts.vision
        self._images = ImageReader(config.model.path, tower) if tower else None
        if self._images and not trained_tower(
            ModelSizes(architecture.facts), patterns(config.trainer)
        ):
            self._images.kept = KeptFeatures()
        self._senders = sender_group(self._place.layout, config.trainer.step_timeout)
        self._stages = self._make_stages()
        """The pipeline's stages on this rank."""
        frozen = frozen_parameters(self._rules, config.trainer.freeze)
        for stage in self._stages:
            stage.freeze(self._rules.keys() if config.trainer.lora else frozen)
        facts = architecture.facts
        self._loads = LoadCounter(self._stages, facts, device) if facts.num_experts else None
        self._replays: RouterReplays | None = None
        if config.trainer.router.replay:
            self._replays = RouterReplays(self._stages, device)
            section = config.trainer
            self._experts = SharedExperts(
                facts, self._place, section.virtual_stages, device, section.step_timeout
            )
        self._data_parallel = [_with_buffers(config, stage) for stage in self._stages]
        self._optimizer = _make_optimizer(config, self._dtype, self._data_parallel)
        if config.trainer.distributed_optimizer:
            mark_parts(self._stages, self._optimizer)
        self._moments = BF16_STATE if config.trainer.optimizer == "adamw_bf16" else MOMENTS
        # One for experts, where they are spread over ranks, and one for the rest.
        self._adams: list[torch.optim.Optimizer]
        self._adams = [one.optimizer for one in _parts(self._optimizer)]
        self._adam_of = {
            id(main): adam
            for adam in self._adams
            for group in adam.param_groups
            for main in group["params"]
        }
        is_off_loaded = "optimizer" in config.trainer.offload
        self._on_host = HostCopies(keeps_memory=is_off_loaded or device.type != "cpu")
        """The optimizer's state."""
        self._weights_on_host = HostCopies(keeps_memory=device.type != "cpu")
        self._frozen_elsewhere: dict[str, torch.nn.Parameter] = {}
        """What is frozen here and had trained in the run that this one, or its checkpoint, began with."""
        tensors = load_tensors(config.model.path, architecture.facts.tied)
        check_names(tensors, architecture)
        self._load(self._stages, tensors)
        self._put_away()
        self._gradient_norm = 0.0
        self.num_updates = 0
        self._times = PartTimes(device)
        self._reference: list[PackedGPT] = []
        if config.algorithm.kl.coefficient and not config.trainer.lora:
            self._reference = [stage.requires_grad_(False) for stage in self._make_stages()]
            self._load(self._reference, tensors)
            if self._reference_waits_on_host:
                self._move_reference(torch.device("cpu"))

    def image_cost(self, group: Group) -> float:
        facts, section = self._architecture.facts, self._config.trainer
        if facts.vision is None:
            return 0.0
        tokens = group.prompt_token_ids.count(facts.vision.image_token_id)
        freeze = patterns(section)
        return tokens * image_cost(facts, section.layout, freeze, section.virtual_stages)

    def _make_stages(self) -> list[PackedGPT]:
        config = transformer_config(self._architecture, self._config, self._dtype)
        common = self._architecture, self._all_rules, config, self._config, self._place, self.device
        return [
            PackedGPT(*common, self._images, stage)
            for stage in range(self._config.trainer.virtual_stages)
        ]

    def _load(self, stages: Sequence[PackedGPT], tensors: dict[str, torch.Tensor]) -> None:
        adapters = initial_adapters(self._adapter_rules, self._config.run.seed)
        named = list(chain.from_iterable(stage.named_weights() for stage in stages))
        loaded = health_note.own.counted("loads", named, len(named), "tensors of the model")
        load_weights(loaded, self._all_rules, {**tensors, **adapters}, self._place)

    def _put_away(self) -> None:
        """What `trainer.offload` names: the optimizer but for an update, gradients from an update until
        the next ones are computed."""
        offload = self._config.trainer.offload
        if "optimizer" in offload:
            self._on_host.put_away(self._optimizer_tensors())
        if "gradients" in offload:
            for one in self._data_parallel:
                one.offload_grad_buffers()

    def put_away(self) -> None:
        """Leaves the device to others: parameters and optimizer wait on the host, gradients have no memory.
        Nothing is computed until `bring_back`; `state` gives the same as before."""
        if not self._on_host.is_away:
            self._on_host.put_away(self._optimizer_tensors())
        self._weights_on_host.put_away(
            tensor for stage in self._stages for tensor in (*stage.parameters(), *stage.buffers())
        )
        # Last, as it also gives the device's driver back what torch keeps for later.
        for one in self._data_parallel:
            one.offload_grad_buffers()

    def bring_back(self) -> None:
        """What `put_away` took; the optimizer and gradients when they are needed."""
        self._weights_on_host.bring_back()

    def _optimizer_tensors(self) -> Iterator[torch.Tensor]:
        """Without main weights that are the parameters themselves."""
        for one in self._main_weights():
            if one.is_copy:
                yield one.main
            state = self._adam_of[id(one.main)].state[one.main]
            yield from (state[key] for key in self._moments if key in state)

    def share_experts(self, updates: Sequence[Update]) -> list[Update]:
        experts = self._experts.share(updates)
        return [replace(update, experts=experts) for update in updates]

    def forward(
        self, micro_batches: Sequence[PackedBatch], entropy: bool = False
    ) -> list[TokenOutputs]:
        self._expect_images(micro_batches)
        return schedule.infer(self._stages, micro_batches, entropy)

    def forward_reference(self, micro_batches: Sequence[PackedBatch]) -> list[torch.Tensor]:
        # The engine's choices are the policy's: the reference makes its own.
        micro_batches = [replace(packed, experts=None) for packed in micro_batches]
        if self._config.trainer.lora:  # what the adapters change is the initial policy itself
            with switched_off(chain(*(stage.adapters.values() for stage in self._stages))):
                return [one.logprobs_M for one in self.forward(micro_batches)]
        assert self._reference, "a reference exists only with a KL coefficient"
        if is_away := self._reference_waits_on_host:
            with self._times.of("reference_onload"):
                self._move_reference(self.device)
        self._expect_images(micro_batches)
        outputs = schedule.infer(self._reference, micro_batches, entropy=False)
        if is_away:
            with self._times.of("reference_offload"):
                self._move_reference(torch.device("cpu"))
        return [one.logprobs_M for one in outputs]

    @property
    def _reference_waits_on_host(self) -> bool:
        """While nothing passes it."""
        return self._config.algorithm.kl.offload or self._config.is_colocated

    def _move_reference(self, device: torch.device) -> None:
        for stage in self._reference:
            stage.to(device)

    def forward_backward(
        self, micro_batches: Sequence[PackedBatch], loss: TokenLoss, entropy: bool = False
    ) -> None:
        # Stages share one configuration.
        set_losses(self._stages[0].config, self._config.trainer, micro_batches, self.device)
        self._expect_images(micro_batches)
        schedule.train(self._data_parallel, micro_batches, loss, entropy)

    def _expect_images(self, micro_batches: Sequence[PackedBatch]) -> None:
        if self._images:
            self._images.expect([one.images for one in micro_batches])

    def take_metrics(self) -> dict[str, float]:
        replays = self._replays.take_metrics() if self._replays else {}
        return replays | self._times.take()

    def take_expert_loads(self) -> torch.Tensor:
        return self._loads.take() if self._loads else torch.zeros(0, 0, dtype=torch.int64)

    def end_step(self) -> None:
        if self._images and self._images.kept:
            self._images.kept.clear()

    def zero_gradients(self) -> None:
        for one in self._data_parallel:
            one.restore_grad_buffers()  # where they are away
            one.zero_grad_buffer()
        self._optimizer.zero_grad()

    def sum_gradients(self) -> float:
        if self._place.layout.num_ranks > 1:
            # Without a number of tokens: nothing is divided.
            finalize_model_grads([*self._data_parallel])
        self._optimizer.prepare_grads()
        self._gradient_norm = float(self._optimizer.get_grad_norm())
        return self._gradient_norm

    def update(self, learning_rate: float) -> None:
        """As megatron-core's own `step`, which would not let us look at the norm in between."""
        self._on_host.bring_back()
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        if self._gradient_norm > self._config.trainer.clip_grad:
            # In place, for which megatron-core's own needs apex or TransformerEngine.
            norm = torch.tensor(self._gradient_norm, device=self.device)
            for one in _parts(self._optimizer):
                clip_grads_with_norm_(one.get_parameters(), self._config.trainer.clip_grad, norm)
        self._optimizer.step_with_ready_grads()
        self.num_updates += 1
        self._put_away()

    def reduce(self, sums: torch.Tensor, largest: torch.Tensor) -> None:
        group = parallel_state.get_data_parallel_group()
        dist.all_reduce(sums, group=group)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
        if stages := stage_group():
            for tensor in (sums, largest):
                from_last(tensor, stages)

    def any_rank(self, flags: torch.Tensor) -> torch.Tensor:
        total = flags.to(self.device, torch.int32)
        dist.all_reduce(total, op=dist.ReduceOp.MAX)
        return total.cpu().bool()

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """The tensors of a version of the whole model, cut into blocks; the same on every rank."""
        facts, dtype = self._architecture.facts, DTYPE_NAMES[self._dtype]
        own = self.adapter_shapes if self._config.trainer.sends_adapters else {}
        adapters = [(name, dtype, shape) for name, shape in own.items()]
        return cut_tensors([*tensor_specs(facts, self._dtype), *adapters], facts)

    def parts(self) -> Iterator[TensorPart]:
        """This rank's parts of the tensors, as views of live parameters where that is possible; with
        adapters added, or B of an adapter times alpha / rank, made when its turn comes.

        All tensor-parallel ranks of a stage must iterate together, to the end.
        """
        if self._config.trainer.sends_adapters:
            return self._separate_parts()
        named = (
            (name, stage.published(weight))
            for stage in self._stages
            for name, weight in stage.named_weights()
            if name in self._rules
        )
        return list_parts(named, self._rules, self._place, gather_rows)

    def _separate_parts(self) -> Iterator[TensorPart]:
        named = chain.from_iterable(stage.separate_weights() for stage in self._stages)
        for part in list_parts(named, self._all_rules, self._place, gather_rows):
            yield replace(part, is_frozen=not is_adapter(part.name))

    def add_up(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over the ranks that send weights, which must all call."""
        total = values.to(self.device)
        if self._senders is not None:
            dist.all_reduce(total, group=self._senders)
        return total.cpu()

    def export(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(Hugging Face name, whole tensor in the model's dtype), right on rank 0.

        All ranks that send weights must iterate together. Each adds its parts into zeros, as bytes:
        exactly one rank has each element, so the sum is that element, bit for bit.
        """
        facts = self._architecture.facts
        specs = cut_tensors(tensor_specs(facts, self._dtype), facts)
        axes = {tensor.name: tensor.axis for tensor in specs}
        return self._gather(self._rules, axes)

    def export_adapters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The same of the adapters, by the names that `adapter_shapes` has; nothing without any."""
        axes = {rule.names[0]: rule.axis for rule in self._adapter_rules.values()}
        return self._gather(self._adapter_rules, axes)

    @property
    def adapter_shapes(self) -> dict[str, tuple[int, ...]]:
        """By Hugging Face name, in the order in which `export_adapters` gives them."""
        return {rule.names[0]: rule.shapes[0] for rule in self._adapter_rules.values()}

    def _gather(self, rules: Rules, axes: Mapping[str, int]) -> Iterator[tuple[str, torch.Tensor]]:
        held = {
            name: (stage, weight)
            for stage in self._stages
            for name, weight in stage.named_weights()
        }
        missing, begun = num_sources(rules), dict[str, torch.Tensor]()
        for name, rule in rules.items():
            own: list[tuple[str, torch.Tensor]] = []
            if name in held:
                stage, weight = held[name]
                own.append((name, stage.published(weight)))
            parts = {part.name: part for part in list_parts(own, rules, self._place, gather_rows)}
            for hf_name, shape in () if rule.is_copy else zip(rule.names, rule.shapes, strict=True):
                if hf_name not in begun:
                    dtype = torch.float32 if rule.is_fixed else self._dtype
                    begun[hf_name] = torch.zeros(shape, dtype=dtype, device=self.device)
                whole = begun[hf_name]
                if part := parts.get(hf_name):
                    share = whole.narrow(axes[hf_name], part.start, part.stop - part.start)
                    share.copy_(part.tensor)
                missing[hf_name] -= 1
                if missing[hf_name]:
                    continue  # other experts of the stack
                del begun[hf_name]
                if self._senders is not None:
                    dist.reduce(whole.view(torch.int8), 0, group=self._senders)
                yield hf_name, whole

    def state(self) -> dict[str, torch.Tensor]:
        """This rank's main weights and what the optimizer keeps of each, live; before the first update
        the weights alone. Frozen ones are in it where another run had trained them: the others are those of
        the model's folder.

        With the distributed optimizer its parts of them, flat: `main.NAME@START` begins at that element.
        Raises InternalError for an optimizer that keeps no moments under AdamW's names.
        """
        state = {}
        for one in self._main_weights():
            holder = self._on_host if one.is_copy else self._weights_on_host
            state[f"main.{one.name}"] = holder.values(one.main)
            for key in self._moments if self.num_updates else ():
                adam = self._adam_of[id(one.main)]
                if key not in adam.state[one.main]:
                    raise InternalError(f"{type(adam).__name__} holds no {key} of {one.name}")
                state[f"{key}.{one.name}"] = self._on_host.values(adam.state[one.main][key])
        for name, weight in self._frozen_elsewhere.items():
            values = self._weights_on_host.values(weight)
            if self._config.trainer.distributed_optimizer:
                state[f"main.{name}{WHOLE}"] = values.flatten()
            else:
                state[f"main.{name}"] = values
        return state

    def load_state(self, state: Mapping[str, torch.Tensor], num_updates: int) -> None:
        """What `state` gave after `num_updates` optimizer updates; with the distributed optimizer also
        whole parameters. All ranks must call.

        Raises InputError, before anything changes, when it is not of this model.
        """
        self._check_state(state, num_updates)
        self._on_host.bring_back()
        for one in self._main_weights():
            with torch.no_grad():
                one.main.copy_(one.find("main", state))
                one.computes.copy_(one.main)
            if num_updates:
                # A tensor of its own each: torch's AdamW counts in it, in place.
                entry: dict[str, Any] = {
                    "step": torch.tensor(float(num_updates), device=self.device)
                }
                for key in self._moments:
                    entry[key] = self._find_kept(key, one, state)
                self._adam_of[id(one.main)].state[one.main] = entry
        self._load_frozen(state)
        if self._config.trainer.distributed_optimizer:
            # The other parts come from the ranks that updated them.
            for stage in self._data_parallel:
                stage.start_param_sync(force_sync=True)
        self._put_away()
        for group in self._optimizer.param_groups:
            # Where MindSpeed's AdamW and the FusedAdam of TransformerEngine and apex count.
            group["step"] = num_updates
        self.num_updates = num_updates

    def _find_kept(
        self, key: str, one: MainWeight, state: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        """As this run's optimizer keeps it. Another optimizer has no compensation: there it begins at 0."""
        if key not in MOMENTS and not one.is_in(key, state):
            return torch.zeros_like(one.main)
        found = one.find(key, state).to(self.device, one.main.dtype)
        return found.clone()  # torch's AdamW adds in place

    def _load_frozen(self, state: Mapping[str, torch.Tensor]) -> None:
        """What trained in another run and does not in this one."""
        for stage in self._stages:
            for name, weight in stage.named_weights():
                key = next((k for k in (f"main.{name}", f"main.{name}{WHOLE}") if k in state), None)
                if not weight.requires_grad and key:
                    with torch.no_grad():
                        weight.copy_(state[key].view(weight.shape))
                    self._frozen_elsewhere[name] = weight
                    # The reference has the folder's tower, which is then another one.
                    if self._images and self._reference and name.startswith(TOWER):
                        self._images.kept = None

    def _check_state(self, state: Mapping[str, torch.Tensor], num_updates: int) -> None:
        specs = specs_of(state)
        kinds = ("main", *MOMENTS) if num_updates else ("main",)
        wanted = [
            (f"{kind}.{one.name}", one.main.shape)
            if one.part is None or f"{kind}.{one.name}" in specs
            else (f"{kind}.{one.parameter}", one.shape)
            for one in self._main_weights()
            for kind in kinds
        ]
        for name, shape in wanted:
            if name not in specs:
                raise InputError(
                    f"the checkpoint lacks {name}, so training cannot go on from it; what trains"
                    " (trainer.freeze, trainer.lora) must be in it"
                )
            if specs[name].shape != shape:
                raise InputError(
                    f"the checkpoint's {name} has shape {specs[name].shape};"
                    f" this run's model needs {tuple(shape)}"
                )

    def _main_weights(self) -> Iterator[MainWeight]:
        return main_weights(self._trained_weights())

    def _trained_weights(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        return chain.from_iterable(stage.trained_weights() for stage in self._stages)


def _with_buffers(config: RunConfig, stage: PackedGPT) -> DistributedDataParallel:
    """For its gradients."""
    choices = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        use_distributed_optimizer=config.trainer.distributed_optimizer,
    )
    return DistributedDataParallel(stage.config, choices, stage)


def _parts(optimizer: Any) -> list[Any]:
    """megatron-core chains the optimizers of a model, also where it is one. One for which nothing on this
    rank trains holds none itself."""
    return [one for one in optimizer.chained_optimizers if one.optimizer is not None]


def _make_optimizer(
    config: RunConfig, dtype: torch.dtype, stages: list[DistributedDataParallel]
) -> Any:
    section = config.trainer
    in_bf16 = section.optimizer == "adamw_bf16"
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=section.learning_rate,
            weight_decay=section.weight_decay,
            adam_beta1=section.beta1,
            adam_beta2=section.beta2,
            adam_eps=section.epsilon,
            bf16=dtype == torch.bfloat16 and not in_bf16,  # that there are fp32 main weights
            params_dtype=dtype,
            clip_grad=section.clip_grad,
            use_distributed_optimizer=section.distributed_optimizer,
        ),
        [*stages],
        use_gloo_process_groups=False,
    )
    if in_bf16:
        optimizer = with_bf16_adamw(optimizer)
    for one in _parts(optimizer):
        for group in one.param_groups:
            # megatron-core leaves this to its scheduler, which we do without.
            group["weight_decay"] = section.weight_decay * group["wd_mult"]
            # torch's fused AdamW takes a tenth of the loop's time; megatron-core does not ask for it.
            if type(one.optimizer) is torch.optim.AdamW:
                group["fused"], group["foreach"] = True, False
    return optimizer
