"""Hugging Face weights <-> the parameters that a rank holds, by the rules of the model's family.

Every rank knows by them what the others hold, without asking.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch

from services.trainer.megatron.architecture import Architecture
from services.trainer.megatron.parameters.family_rules import family_rules
from services.trainer.megatron.parameters.main_weights import fill_main
from services.trainer.megatron.parameters.rules import MappingRule, Rules, Shape
from trimaran.config.parallel import RankPlace
from trimaran.errors import InputError, InternalError
from trimaran.model.folder import HEAD, ModelFacts
from weights.memory.host_memory import DTYPE_NAMES
from weights.sending.snapshot import TensorPart

LAYER = re.compile(r"((?:module\.)*)decoder\.layers\.(\d+)\.")
EXPERT = re.compile(r"local_experts\.(\d+)\.")
NOT_WEIGHTS = re.compile(r".*\.rotary_emb\.inv_freq")
"""Computed from config.json; older folders hold them all the same."""


def model_rules(architecture: Architecture) -> Rules:
    """The rules of all parameters of the whole model: the embedding, layer by layer, the last norm, the output
    layer, and the vision tower where there is one."""
    return family_rules(architecture.facts)


def rule_for(name: str, rules: Rules) -> MappingRule:
    """Raises InternalError for a parameter that the family does not list."""
    if name not in rules:
        raise InternalError(
            f"{name}: a parameter of megatron-core's model for which the model's family has no rule;"
            " add one to services/trainer/megatron/parameters/layer_rules.py"
        )
    return rules[name]


def tensor_specs(facts: ModelFacts, dtype: torch.dtype) -> list[tuple[str, str, Shape]]:
    """(name, dtype, shape) of the Hugging Face tensors of the whole model, in one order on every rank."""
    found: dict[str, tuple[str, str, Shape]] = {}
    for rule in family_rules(facts).values():
        if not rule.is_copy:
            kind = DTYPE_NAMES[torch.float32 if rule.is_fixed else dtype]
            found |= {
                name: (name, kind, shape)
                for name, shape in zip(rule.names, rule.shapes, strict=True)
            }
    return [*found.values()]


def num_sources(rules: Rules) -> Counter[str]:
    """How many parameters have a part of each Hugging Face tensor: as many as there are experts of a
    stack, else one."""
    return Counter(name for rule in rules.values() if not rule.is_copy for name in rule.names)


def parameters(
    model: torch.nn.Module, first_layer: int, first_expert: int = 0
) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """By megatron-core's name with numbers of the whole model. `first_layer` and `first_expert`: those
    of this rank."""
    for name, parameter in model.named_parameters():
        name = LAYER.sub(lambda m: f"decoder.layers.{int(m[2]) + first_layer}.", name)
        yield EXPERT.sub(lambda m: f"local_experts.{int(m[1]) + first_expert}.", name), parameter


def mark_shards(named: Iterable[tuple[str, torch.nn.Parameter]], rules: Rules) -> None:
    """Say which parameters are shards: else the gradient's norm counts only those of rank 0.

    megatron-core does so itself only while it initialises weights, which we load instead.
    """
    for name, parameter in named:
        # Experts count everywhere: tensor-parallel ranks hold different ones.
        parameter.tensor_model_parallel = not rule_for(name, rules).replicated  # type: ignore[attr-defined]


def load_weights(
    named: Iterable[tuple[str, torch.nn.Parameter]],
    rules: Rules,
    tensors: Mapping[str, torch.Tensor],
    place: RankPlace,
) -> None:
    """Fill this rank's parameters, and their fp32 main copies where the optimizer made them."""
    for name, parameter in named:
        shard = cut_shard(rule_for(name, rules), tensors, place)
        with torch.no_grad():
            parameter.copy_(shard)
            fill_main(parameter, shard)


def cut_shard(
    rule: MappingRule, tensors: Mapping[str, torch.Tensor], place: RankPlace
) -> torch.Tensor:
    """Loads the weights of the rank at `place`. Raises InputError for a tensor that is missing or has another shape."""
    whole_tensors = [_checked(tensors, *one) for one in zip(rule.names, rule.shapes, strict=True)]
    return rule.shard(whole_tensors, *rule.at(place))


def _checked(tensors: Mapping[str, torch.Tensor], name: str, shape: Shape) -> torch.Tensor:
    if name not in tensors:
        raise InputError(f"{name}: missing from the model's safetensors")
    if (found := tuple(tensors[name].shape)) != shape:
        raise InputError(f"{name}: shape does not fit config.json (have {found}, need {shape})")
    return tensors[name]


def check_names(names: Iterable[str], architecture: Architecture) -> None:
    """Checks the tensors in a folder. Raises InputError for one that the family does not have: trained
    without it the model would be another."""
    facts = architecture.facts
    known = {name for name, _, _ in tensor_specs(facts, torch.float32)}
    unknown = [name for name in names if name not in known and not NOT_WEIGHTS.fullmatch(name)]
    if (experts := facts.described.experts) and experts.scores == "sigmoid":
        behind = f"{facts.language_prefix}layers.{facts.num_layers}."
        unknown = [name for name in unknown if not name.startswith(behind)]
    if facts.tied:
        unknown = [name for name in unknown if name != HEAD]  # a copy of the embedding
    if unknown:
        more = f", and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise InputError(
            f"model.path: {unknown[0]}{more}: no tensor of the family {facts.family}, so"
            " the trained model would not be the one in the folder; docs/extending.md says how a"
            " family is added"
        )


def list_parts(
    named: Iterable[tuple[str, torch.Tensor]],
    rules: Rules,
    place: RankPlace,
    gather: Callable[[torch.Tensor, bool], torch.Tensor],
) -> Iterator[TensorPart]:
    """What this rank sends of each Hugging Face tensor.

    What several ranks hold is sent by the first of them, so that the parts of all ranks have each
    element once. Tensors may be views of live parameters. `gather`: a parameter of all
    tensor-parallel ranks, or if True of all that share an expert, one after the other; with it, all of
    these ranks must iterate to the end.
    """
    for name, parameter in named:
        rule = rule_for(name, rules)
        sends = place.sends_experts if rule.of_expert else place.sends_dense
        if rule.is_copy or not sends or (rule.replicated and place.tensor):
            continue
        rank, size = rule.at(place)
        if size > rule.most_ranks:
            parameter = gather(parameter, rule.of_expert)
        shares = rule.shares(parameter, rank, size)
        for hf_name, share in zip(rule.names, shares, strict=True):
            if share.start < share.stop:  # else all of it is padding
                yield TensorPart(hf_name, *share)
