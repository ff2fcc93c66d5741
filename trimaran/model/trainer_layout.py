"""Can a model be trained in a layout? Known from config.json alone, before anything starts."""

from __future__ import annotations

from collections.abc import Iterator

from trimaran.config import RouterSection, TrainerSection
from trimaran.config.parallel import ParallelLayout
from trimaran.errors import InputError
from trimaran.model.folder import ModelFacts

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


def check_trainer_layout(facts: ModelFacts, section: TrainerSection) -> None:
    """Raises InputError, a line for each size that does not fit the model, with those that do."""
    if faults := list(_faults(facts, section)):
        raise InputError("\n".join(faults))


def _faults(facts: ModelFacts, section: TrainerSection) -> Iterator[str]:
    layout = section.layout
    if why := _tensor_fault(facts, layout.tensor):
        fitting = [n for n in range(1, facts.num_heads + 1) if not _tensor_fault(facts, n)]
        yield (
            f"trainer.tensor_parallel: {layout.tensor} {why}; this model can be split by"
            f" {', '.join(map(str, fitting))}"
        )
    else:
        yield from _context_faults(facts, layout)
    if layout.expert > max(facts.num_experts, 1) or facts.num_experts % layout.expert:
        yield _experts_fault(facts, layout)
    if facts.num_experts and layout.tensor > 1:
        if not section.sequence_parallel:
            yield (
                "trainer.sequence_parallel: a model with experts needs it where tensor_parallel is"
                f" above 1 (it is {layout.tensor}); set it to true"
            )
        if layout.expert_parts % layout.tensor:
            yield (
                f"trainer.expert_parallel: {layout.expert} x expert_tensor_parallel"
                f" {layout.expert_tensor} is no multiple of tensor_parallel {layout.tensor}, so"
                " tensor-parallel ranks would hold the same experts; use a multiple, or"
                f" expert_tensor_parallel: {layout.tensor}"
            )
    yield from _slices_faults(facts, layout.expert_tensor)
    yield from _lora_faults(facts, section)
    yield from _vision_faults(facts, section)
    if not facts.num_experts and section.router != RouterSection():
        yield "trainer.router: the model has no experts, and so no routers; leave it out"
    yield from _stage_faults(facts, section)


def _stage_faults(facts: ModelFacts, section: TrainerSection) -> Iterator[str]:
    layout = section.layout
    if layout.layers:
        if (total := sum(layout.layers)) != facts.num_layers:
            yield (
                f"trainer.pipeline_layers: {' + '.join(map(str, layout.layers))} layers are {total}, and the"
                f" model has {facts.num_layers}"
            )
    elif not facts.num_layers % layout.pipeline:
        if (layers := facts.num_layers // layout.pipeline) % section.virtual_stages:
            yield (
                f"trainer.virtual_stages: {section.virtual_stages} does not divide the {layers} layers of a"
                f" pipeline rank ({facts.num_layers} / {layout.pipeline}); it can be"
                f" {', '.join(str(n) for n in range(1, layers + 1) if layers % n == 0)}"
            )
    else:
        fitting = [n for n in range(1, facts.num_layers + 1) if facts.num_layers % n == 0]
        yield (
            f"trainer.pipeline_parallel: {layout.pipeline} does not divide the model's"
            f" {facts.num_layers} layers; this model can have"
            f" {', '.join(map(str, fitting))} stages, or others with trainer.pipeline_layers"
        )


def _experts_fault(facts: ModelFacts, layout: ParallelLayout) -> str:
    has = "no experts; leave it out"
    if count := facts.num_experts:
        fitting = [n for n in range(1, count + 1) if count % n == 0]
        has = f"{count} experts a layer; it can be {', '.join(map(str, fitting))}"
    return (
        f"trainer.expert_parallel: {layout.expert} shares of the experts, and the model has {has}"
    )


def _slices_faults(facts: ModelFacts, slices: int) -> Iterator[str]:
    name = "trainer.expert_tensor_parallel"
    if slices == 1:
        return
    if not facts.num_experts:
        yield f"{name}: the model has no experts; leave it out"
    elif facts.stacks_experts:
        yield (
            f"{name}: {slices} slices, and this model's folder stacks its experts in one tensor, of which"
            " each is one piece here; leave it out, and use expert_parallel"
        )
    elif facts.expert_size % slices:
        yield f"{name}: {slices} does not divide the model's moe_intermediate_size {facts.expert_size}"


def _context_faults(facts: ModelFacts, layout: ParallelLayout) -> Iterator[str]:
    """In the attention the ranks divide the heads of a tensor-parallel rank."""
    heads = facts.num_heads // layout.tensor
    keys = max(1, facts.num_kv_heads // layout.tensor)
    fitting = [n for n in range(1, heads + 1) if not (heads % n or (keys % n and n % keys))]
    if layout.context not in fitting:
        yield (
            f"trainer.context_parallel: {layout.context} ranks cannot divide the {heads} attention heads"
            f" and {keys} KV heads of a tensor-parallel rank (the model has {facts.num_heads} and"
            f" {facts.num_kv_heads}, tensor_parallel is {layout.tensor}); it can be"
            f" {', '.join(map(str, fitting))}"
        )


def _vision_faults(facts: ModelFacts, section: TrainerSection) -> Iterator[str]:
    """Features of inner blocks do not travel between pipeline stages."""
    fed = facts.vision.num_deepstack if facts.vision else 0
    if (layers := len(section.layout.stages(facts.num_layers, section.virtual_stages)[0])) >= fed:
        return
    if section.pipeline_layers:
        yield (
            f"trainer.pipeline_layers: the first stage has {layers} layers, and the vision tower, which is on"
            f" it, feeds the first {fed} of the model; give it at least {fed}"
        )
    else:
        yield (
            f"trainer.pipeline_parallel: {section.layout.pipeline} ranks with"
            f" virtual_stages {section.virtual_stages} give the first stage {layers} layers, and the vision"
            f" tower, which is on it, feeds the first {fed} of the model; use at most"
            f" {facts.num_layers // fed} stages"
        )


def _lora_faults(facts: ModelFacts, section: TrainerSection) -> Iterator[str]:
    targets = section.lora.targets if section.lora else ()
    if facts.latent and (ones := [one for one in targets if one in ATTENTION[:3]]):
        yield (
            f"trainer.lora.targets: latent attention has no {', '.join(ones)} that take adapters here; leave"
            " them out"
        )
    if facts.num_experts and (mlp := [one for one in targets if one not in ATTENTION]):
        yield (
            f"trainer.lora.targets: the model has experts, which have no adapters here; leave out"
            f" {', '.join(mlp)}"
        )
    keys = facts.num_kv_heads
    if section.tensor_parallel > keys and (
        heads := [one for one in targets if one in ATTENTION[:3]]
    ):
        yield (
            f"trainer.lora.targets: {', '.join(heads)} cannot be split further than the model's {keys}"
            f" KV heads, and tensor_parallel is {section.tensor_parallel}; lower it, or leave them out"
        )


def _tensor_fault(facts: ModelFacts, size: int) -> str:
    """Where there are more ranks than key/value heads, several share one."""
    if facts.num_heads % size:
        return f"does not divide the model's {facts.num_heads} attention heads"
    if facts.num_kv_heads % size and size % facts.num_kv_heads:
        return (
            f"neither divides the model's {facts.num_kv_heads} KV heads nor is a multiple of them"
        )
    if facts.num_kv_heads * 2 * facts.head_dim % size:
        return f"does not divide the model's {facts.num_kv_heads} KV heads of {facts.head_dim} channels"
    inner = {"intermediate_size": facts.intermediate_size}
    if facts.num_experts:  # experts have a size of their own (`_slices_faults`)
        shared = {"shared_expert_intermediate_size": facts.shared_expert_size}
        inner = shared | (inner if facts.first_experts else {})
    if latent := facts.latent:
        inner["q_lora_rank"] = latent.queries_rank
        inner["kv_lora_rank + qk_rope_head_dim"] = latent.keys_rank + latent.turned
    for name, length in inner.items():
        if length % size:
            return f"does not divide the model's {name} {length}"
    return ""
