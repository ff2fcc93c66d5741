"""Weights of ours <-> a distributed checkpoint of megatron-core (`torch_dist`), in one process.

    any parameters ─▶ TARGET/release/      tensors of the whole model, which a GPTModel of any layout loads
    torch_dist     ─▶ Hugging Face         of a model that Megatron has trained in any layout

Weights alone: no moments, as Megatron-LM's own `release` checkpoints, from which it begins with a new optimizer.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import torch

from services.trainer.convert import check_room
from services.trainer.megatron.architecture import Architecture
from services.trainer.megatron.family_rules import family_rules
from services.trainer.megatron.rules import Shape
from services.trainer.megatron.sharded_keys import Place, extra_state, numbered, places
from services.trainer.megatron.shards import shard_shape
from services.trainer.torch_dist import TorchDistWriter
from services.trainer.torch_dist_reader import (
    TRACKER,
    read_box,
    read_entries,
)
from services.trainer.whole_model import Parameters, Version
from trimaran.errors import InputError
from trimaran.model_folder import ModelFacts
from trimaran.parallel import Layout
from trimaran.places import put_in_place, sync

RELEASE = "release"
"""How Megatron-LM names weights of no iteration."""
OF_A_MODEL = ("embedding.", "decoder.", "output_layer.", "mtp.")
VOCABULARY = ("embedding.word_embeddings.weight", "output_layer.weight")
"""Megatron pads their rows."""


def write_torch_dist(facts: ModelFacts, whole: Parameters, target: Path, dtype: str) -> str:
    """The weight root of what was written. Appears whole or not at all.

    Raises InputError for a model that megatron-core's GPTModel does not hold, UnavailableError where the
    disk has no room.
    """
    refuse_vision(facts)
    version = Version(facts, getattr(torch, dtype))
    check_room(target, sum(spec.num_bytes for spec in version.specs))
    temporary = target.with_name(f"{target.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    folder = temporary / RELEASE
    folder.mkdir(parents=True)
    try:
        with TorchDistWriter(folder) as writer:
            root = version.read(_written(facts, whole, writer, getattr(torch, dtype)))
        (temporary / TRACKER).write_text(RELEASE, encoding="utf-8")
        for path in (*folder.iterdir(), folder, temporary / TRACKER):
            sync(path)
        put_in_place(temporary, target)
    except BaseException:  # a disk that it has filled would stay full
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return root


def refuse_vision(facts: ModelFacts) -> None:
    if facts.vision:
        raise InputError(
            f"{facts.family}: megatron-core's GPTModel has no vision tower, and projects that add one name"
            " its tensors each in their own way; the Hugging Face folder is what they read"
        )


def _written(
    facts: ModelFacts, whole: Parameters, writer: TorchDistWriter, dtype: torch.dtype
) -> Iterator[tuple[str, torch.Tensor]]:
    """Each parameter goes on once it is in the file."""
    for name, parameter in whole:
        own, parameter = places(name, facts), parameter.to(dtype)
        writer.write(own, parameter)
        if key := extra_state(own[0]):
            writer.write_nothing(key)
        yield name, parameter


class MegatronCheckpoint:
    """The parameters of a checkpoint that megatron-core's GPTModel has saved.

    Example: MegatronCheckpoint(folder, read_architecture(model)).parameters()
    """

    def __init__(self, folder: Path, architecture: Architecture) -> None:
        """Raises InputError where it is another model, or cannot be read."""
        facts = self._facts = architecture.facts
        refuse_vision(facts)
        self._folder, self._entries = folder, read_entries(folder)
        rules, alone = family_rules(facts), Layout().place(0)
        self._found: dict[str, tuple[Place, Shape]] = {}
        for name, rule in rules.items():
            if not rule.is_copy:
                shape = shard_shape(rule, alone)
                self._found[name] = self._find(name, shape), shape
        known = {place.key for name in self._found for place in self._places(name)}
        unknown = [key for key in self._entries if key.startswith(OF_A_MODEL) and key not in known]
        if unknown:
            raise InputError(
                f"{folder}: holds {unknown[0]}, and the model's config.json makes no such tensor"
            )

    @property
    def dtype(self) -> str:
        """As the weights are; float32 where they differ, or are float16."""
        dtypes = {self._entries[place.key].dtype for place, _ in self._found.values()}
        return "bfloat16" if dtypes == {torch.bfloat16} else "float32"

    def parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Of the whole model, in float32."""
        for name, (place, shape) in self._found.items():
            start, box = (*place.index, *(0 for _ in shape)), (*(1 for _ in place.stack), *shape)
            entry = self._entries[place.key]
            tensor = read_box(self._folder, place.key, entry, start, box)
            yield name, tensor.view(shape).float()

    def _places(self, name: str) -> list[Place]:
        stacked = places(name, self._facts)
        return [*stacked, *map(numbered, stacked)]

    def _find(self, name: str, shape: Shape) -> Place:
        own = self._places(name)
        for place in own:
            if entry := self._entries.get(place.key):
                if not _fits(entry.shape, place.shape(shape), place.key):
                    raise InputError(
                        f"{self._folder}: {place.key} has shape {entry.shape}, and the model's config.json"
                        f" makes it {place.shape(shape)}"
                    )
                return place
        raise InputError(f"{self._folder}: lacks {own[0].key}; is it of this model?")


def _fits(found: Shape, wanted: Shape, key: str) -> bool:
    if key in VOCABULARY:
        return found[1:] == wanted[1:] and found[0] >= wanted[0]
    return found == wanted
