"""A Hugging Face folder <-> a checkpoint of any layout, in one process, without ranks and without a model.

    Hugging Face ─▶ checkpoint      main weights in float32; no moments, as before the first update
    checkpoint   ─▶ Hugging Face    main weights, rounded to a dtype
    checkpoint   ─▶ checkpoint      of another layout, moments and all

One parameter is on the host at a time, besides pages of mapped files. Whatever comes from Hugging Face in
bfloat16 or float16 goes back bit for bit: float32 holds each of their numbers.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from services.trainer import checkpoint
from services.trainer.checkpoint import Keep, Model, RankLayout, TrainerState
from services.trainer.checkpoint_folder import newest
from services.trainer.megatron.architecture import read_architecture
from services.trainer.megatron.family_rules import family_rules
from services.trainer.megatron.mapping import (
    check_names,
    cut_shard,
    family_shapes,
    num_sources,
)
from services.trainer.megatron.shards import held_names, shard_shape
from services.trainer.model_files import load_tensors, write_model_folder
from services.trainer.resharding import Resharded
from services.trainer.saved import SavedTensors
from services.trainer.tensor_file import Spec
from services.weight_sync.data.digest import digest_value
from services.weight_sync.data.grid import cut_tensors
from services.weight_sync.data.manifest import compute_root, list_blocks
from services.weight_sync.data.memory import DTYPE_NAMES
from trimaran.errors import InputError, UnavailableError
from trimaran.model_folder import ModelFacts
from trimaran.parallel import Layout, RankPlace

DIGEST = "xxh3-128"
"""Of weight roots here; also the default of `weight_sync.digest`."""


def checkpoint_to_huggingface(
    folder: Path, state: TrainerState, source: Path, target: Path, dtype: str
) -> str:
    """The weight root of what was written. `folder` holds the shards; `source` is a folder of the same
    model, for tokenizer, config.json and what was frozen.

    Raises InputError for a damaged shard, UnavailableError where the disk has no room.
    """
    facts = state.model.facts
    whole = Resharded(
        facts,
        state.layout,
        Layout().place(0),
        lambda number: checkpoint.open_shard(folder, state, number),
    )
    version = _Version(facts, getattr(torch, dtype))
    check_room(target, sum(spec.num_bytes for spec in version.specs))
    base = _FromHuggingFace(facts, load_tensors(source, facts.tied), Layout().place(0))
    write_model_folder(target, source, version.specs, version.tensors(whole, base), dtype)
    return version.root


class _Version:
    """The Hugging Face tensors of a model, one by one, and in the end their weight root."""

    def __init__(self, facts: ModelFacts, dtype: torch.dtype) -> None:
        self._facts, self._dtype = facts, dtype
        specs = ((name, DTYPE_NAMES[dtype], shape) for name, shape in family_shapes(facts))
        self._infos = {info.name: info for info in cut_tensors(specs, facts)}

    @property
    def specs(self) -> list[Spec]:
        return [Spec(info.name, info.dtype, info.shape) for info in self._infos.values()]

    def tensors(
        self, saved: Mapping[str, torch.Tensor], frozen: Mapping[str, torch.Tensor]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Each as the only rank of a run has it. `frozen`: for what was not saved."""
        rules, begun = family_rules(self._facts), dict[str, torch.Tensor]()
        missing = num_sources(rules)
        for name, rule in rules.items():
            if rule.is_copy:
                continue
            main = f"main.{name}"
            shares = rule.shares(saved[main] if main in saved else frozen[main], 0, 1)
            for hf_name, share in zip(rule.names, shares, strict=True):
                tensor = share.tensor.to(self._dtype)
                if missing[hf_name] > 1 or hf_name in begun:  # one expert of a stack
                    if hf_name not in begun:
                        begun[hf_name] = self._empty(hf_name)
                    tensor = begun[hf_name]
                    tensor[share.start : share.stop] = share.tensor
                missing[hf_name] -= 1
                if not missing[hf_name]:
                    begun.pop(hf_name, None)
                    self._digest(hf_name, tensor)
                    yield hf_name, tensor

    def _empty(self, name: str) -> torch.Tensor:
        return torch.empty(self._infos[name].shape, dtype=self._dtype)

    @property
    def root(self) -> str:
        """Once all tensors have come."""
        return compute_root(DIGEST, self._infos.values())

    def _digest(self, name: str, tensor: torch.Tensor) -> None:
        info = self._infos[name]
        blocks = (
            tensor.narrow(info.axis, one.start, one.stop - one.start) for one in list_blocks([info])
        )
        digests = tuple(digest_value(DIGEST, block) for block in blocks)
        self._infos[name] = replace(info, digests=digests)


class _FromHuggingFace(SavedTensors):
    """What the rank at `place` would save before its first update."""

    def __init__(
        self, facts: ModelFacts, tensors: Mapping[str, torch.Tensor], place: RankPlace
    ) -> None:
        self._rules, self._tensors, self._place = family_rules(facts), tensors, place
        self._specs = {
            f"main.{name}": Spec(f"main.{name}", "F32", shard_shape(self._rules[name], place))
            for name in held_names(self._rules, facts, place)
        }

    @property
    def specs(self) -> Mapping[str, Spec]:
        return self._specs

    def __getitem__(self, name: str) -> torch.Tensor:
        rule = self._rules[name.removeprefix("main.")]
        return cut_shard(rule, self._tensors, self._place).float()


def huggingface_to_checkpoint(source: Path, target: Path, layout: Layout, dtype: str) -> Path:
    """Of step 0, in `target`/checkpoints. `dtype`: in which a run computes with the weights; their root
    is of these. Raises InputError for a folder that is no model of ours."""
    _check_target(target)
    architecture = read_architecture(source)
    facts = architecture.facts
    tensors = load_tensors(source, facts.tied)
    check_names(tensors, architecture)
    version = _Version(facts, getattr(torch, dtype))
    for _ in version.tensors({}, _FromHuggingFace(facts, tensors, Layout().place(0))):
        pass  # for their root alone
    state = TrainerState(
        step=0,
        lineage=0,
        num_updates=0,
        root=version.root,
        metrics={},
        nonfinite="",
        layout=RankLayout(layout, dtype, updates_per_batch=1),
        model=Model(source.name, facts),
        shards=(),
    )
    return _write(target, state, lambda place: _FromHuggingFace(facts, tensors, place))


def checkpoint_to_checkpoint(
    folder: Path, state: TrainerState, target: Path, layout: Layout
) -> Path:
    """The same step, with moments where it has some, as `layout` would have saved it without a
    distributed optimizer or virtual stages."""
    _check_target(target)

    def shard(place: RankPlace) -> SavedTensors:
        return Resharded(
            state.model.facts,
            state.layout,
            place,
            lambda number: checkpoint.open_shard(folder, state, number),
        )

    saved = state.layout
    plain = RankLayout(layout, saved.dtype, saved.updates_per_batch)
    return _write(target, replace(state, layout=plain), shard)


def _check_target(target: Path) -> None:
    """Drops what a conversion that was broken off has left."""
    if (target / "config.yaml").exists():
        raise InputError(f"{target}: is a run's folder; name another one")
    if (found := newest(target)) is not None:
        raise InputError(f"{target}: holds {found.name} already; name another folder")
    checkpoint.tidy(target)


def _write(target: Path, state: TrainerState, shard: Callable[[RankPlace], SavedTensors]) -> Path:
    senders = state.layout.ranks.senders
    specs = [spec for place in senders for spec in shard(place).specs.values()]
    check_room(target, sum(spec.num_bytes for spec in specs))
    digests = [
        checkpoint.write_shard(target, state.step, place.shard, shard(place)) for place in senders
    ]
    return checkpoint.publish(target, replace(state, shards=tuple(digests)), Keep(newest=1))


def check_room(target: Path, num_bytes: int) -> None:
    """Raises UnavailableError where the disk has less."""
    there = next(path for path in (target.absolute(), *target.absolute().parents) if path.exists())
    if (free := shutil.disk_usage(there).free) < num_bytes:
        raise UnavailableError(
            f"{target}: needs {num_bytes / 1e9:,.2f} GB, and its disk has {free / 1e9:,.2f} left; make"
            " room there"
        )
