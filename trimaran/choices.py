"""Names that a configuration may give, and the code behind each: built in, or of an installed package.

A package adds an engine by an entry point in its pyproject.toml, and `rollout.engine: mine` is then
valid in every process of a run:

    [project.entry-points."trimaran.engines"]
    mine = "my_package.engine:MyEngine"

Only what the operator installed can be named so: a run.yaml brings no code along. docs/extending.md
has the recipes.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from trimaran.errors import InputError, did_you_mean


@dataclass(frozen=True, slots=True)
class Choices:
    """The names of one kind of thing.

    Example:
        ENGINES.names()                          # ["vllm", "transformers"], then those of packages
        engine = ENGINES.load("vllm")(config, device)
    """

    group: str
    """The group of entry points by which packages add names."""
    built_in: Mapping[str, str]
    """Name -> "package.module:attribute"."""
    base: str = ""
    """The class that all of them derive from, written in the same way; empty where there is none."""

    def names(self) -> list[str]:
        installed = {point.name for point in _installed(self.group, tuple(sys.path))}
        return [*self.built_in, *sorted(installed - self.built_in.keys())]

    def check(self, name: str) -> str:
        """The name itself. Raises InputError where no choice has it, or more than one."""
        places = [place for place, _ in self._find(name)]
        if not places:
            names = self.names()
            raise InputError(
                f"{name!r} is unknown{did_you_mean(name, names)} (known here: {', '.join(names) or 'none'};"
                f" installed packages add entry points to {self.group})"
            )
        if len(places) > 1:
            raise InputError(
                f"{name!r} is the name of {' and of '.join(places)};"
                " rename the package's entry point, or uninstall the package"
            )
        return name

    def place(self, name: str) -> str:
        """Its "package.module:attribute", for a process that imports it later. Raises InputError as `check` does."""
        self.check(name)
        [(_, point)] = self._find(name)
        return point.value.replace(" ", "") if point else self.built_in[name]

    def load(self, name: str) -> Any:
        """What the name stands for. Its module is imported here and not before.

        Raises InputError as `check` does, and where an installed package is broken.
        """
        self.check(name)
        [(place, point)] = self._find(name)
        if name in self.built_in:
            return _import(self.built_in[name])
        assert point
        try:
            return point.load()
        except (Exception, SystemExit) as error:
            raise InputError(
                f"{place} cannot be loaded ({type(error).__name__}: {error});"
                " fix or uninstall the package"
            ) from error

    def load_base(self) -> Any:
        """The class that `base` names."""
        return _import(self.base)

    def _find(self, name: str) -> Iterator[tuple[str, EntryPoint | None]]:
        """All that have the name: what an error calls it, and the entry point of an installed one."""
        if name in self.built_in:
            yield f"the built-in {self.built_in[name]}", None
        for point in _installed(self.group, tuple(sys.path)):
            if point.name == name:
                package = f"{point.dist.name} {point.dist.version}" if point.dist else "a package"
                yield f"{package}'s entry point {self.group}: {name} = {point.value}", point


def _import(place: str) -> Any:
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)


@lru_cache
def _installed(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """The entry points of the packages on `path`, which is sys.path; reading them takes some milliseconds."""
    return tuple(entry_points(group=group))


ENGINES = Choices(
    "trimaran.engines",
    {
        "vllm": "services.rollout.vllm.engine:VllmEngine",
        "transformers": "services.rollout.transformers.engine:TransformersEngine",
    },
)
"""`rollout.engine`: classes, called with (RunConfig, Device), that keep the contract of
`services.rollout.engine.Engine`."""

LOSSES = Choices(
    "trimaran.losses",
    {
        "ppo_clip": "services.trainer.grpo.losses:PpoClip",
        "gspo": "services.trainer.grpo.losses:Gspo",
        "cispo": "services.trainer.grpo.losses:Cispo",
        "sapo": "services.trainer.grpo.losses:Sapo",
        "geometric_mean": "services.trainer.grpo.losses:GeometricMean",
        "clip_cov": "services.trainer.grpo.losses:ClipCov",
        "kl_cov": "services.trainer.grpo.losses:KlCov",
    },
    base="services.trainer.grpo.kinds:Loss",
)
"""`algorithm.loss`."""

ADVANTAGES = Choices(
    "trimaran.advantages",
    {
        "group": "services.trainer.grpo.advantages:GroupAdvantage",
        "mt_grpo": "services.trainer.grpo.advantages:MtGrpo",
        "rloo": "services.trainer.grpo.advantages:Rloo",
        "reinforce_pp": "services.trainer.grpo.advantages:ReinforcePlusPlus",
        "reinforce_pp_baseline": "services.trainer.grpo.advantages:ReinforcePlusPlusBaseline",
        "opo": "services.trainer.grpo.advantages:Opo",
        "remax": "services.trainer.grpo.advantages:ReMax",
        "pass_at_k": "services.trainer.grpo.advantages:PassAtK",
        "best_of_group": "services.trainer.grpo.advantages:BestOfGroup",
        "gdpo": "services.trainer.grpo.advantages:Gdpo",
    },
    base="services.trainer.grpo.kinds:Advantage",
)
"""`algorithm.advantage`."""

AGGREGATIONS = Choices(
    "trimaran.aggregations",
    {
        "token_mean": "services.trainer.grpo.aggregations:TokenMean",
        "sequence_mean": "services.trainer.grpo.aggregations:SequenceMean",
        "sequence_sum": "services.trainer.grpo.aggregations:SequenceSum",
        "fixed": "services.trainer.grpo.aggregations:Fixed",
    },
    base="services.trainer.grpo.kinds:Aggregation",
)
"""`algorithm.aggregation`."""

DATASET_FORMATS = Choices(
    "trimaran.dataset_formats",
    {
        "jsonl": "trimaran.data.rows:JsonlRows",
        "parquet": "trimaran.data.rows:ParquetRows",
    },
)
"""By the suffix of a file's name, without the dot: functions like `trimaran.data.rows.Read`."""


ENVIRONMENTS = Choices("trimaran.environments", {})
"""`environment.installed`: classes, called with `environment.options`, that keep the contract of
`trimaran.episodes.Environment`."""


SINKS = Choices("trimaran.sinks", {"wandb": "trimaran.telemetry.sinks:WandbSink"})
"""`metrics.sinks`: classes, called with `trimaran.telemetry.sinks.About`, that keep the contract of `Sink` there."""

FAMILIES = Choices(
    "trimaran.model_families",
    {
        name: f"trimaran.model.families.{place}"
        for name, place in {
            "llama": "llama:LLAMA",
            "qwen2": "qwen2:QWEN2",
            "qwen2_moe": "qwen2:QWEN2_MOE",
            "qwen3": "qwen3:QWEN3",
            "qwen3_moe": "qwen3:QWEN3_MOE",
            "qwen2_5_vl": "qwen2:QWEN2_5_VL",
            "qwen3_vl": "qwen3:QWEN3_VL",
            "qwen3_vl_moe": "qwen3:QWEN3_VL_MOE",
            "deepseek_v3": "deepseek:DEEPSEEK_V3",
            "glm4_moe": "glm4:GLM4_MOE",
            "mistral": "mistral:MISTRAL",
            "gemma3_text": "gemma3:GEMMA3_TEXT",
        }.items()
    },
)
"""By `model_type` of a model's config.json: what the trainer can map to Megatron and back, each a
`trimaran.model.families.family.Family`. The only table of families."""


def takes_images(family: object) -> bool:
    return family in FAMILIES.names() and FAMILIES.load(str(family)).takes_images


def vision_families() -> str:
    """The families that take images, for messages."""
    return ", ".join(name for name in FAMILIES.built_in if takes_images(name))
