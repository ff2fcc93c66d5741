"""AdamW's first moments out of a run's newest checkpoint: which gradients it has seen.

Weights alone would not do to compare runs. AdamW divides each gradient by its own size, so a parameter
whose gradients are all twice too large moves as one whose gradients are right.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from services.trainer.checkpoints import checkpoint
from services.trainer.checkpoints.checkpoint_folder import newest
from services.trainer.checkpoints.resharding import Resharded
from services.trainer.megatron.parameters.family_rules import family_rules
from trimaran.config.parallel import ParallelLayout


def first_moments(run: Path) -> dict[str, torch.Tensor]:
    """By Hugging Face name, whole, whatever the layout that saved them."""
    folder = newest(run)
    assert folder is not None
    state = checkpoint.read_any(folder)
    facts = state.model.facts

    def open_file(number: int) -> checkpoint.ShardFile:
        return checkpoint.open_shard(folder, state, number)

    whole = Resharded(facts, state.layout, ParallelLayout().place(0), open_file)
    found: dict[str, torch.Tensor] = {}
    for name, rule in family_rules(facts).items():
        if f"exp_avg.{name}" in whole:
            shares = rule.shares(whole[f"exp_avg.{name}"], 0, 1)
            for hf_name, shape, share in zip(rule.names, rule.shapes, shares, strict=True):
                if rule.own_shape is None:
                    found[hf_name] = share.tensor
                    continue
                # An expert is one element of a stack in some families.
                tensor = found.setdefault(hf_name, torch.full(shape, torch.nan))
                tensor[share.start : share.stop] = share.tensor
    return found


def check_first_moments(run: Path, wanted: Mapping[str, torch.Tensor]) -> None:
    """Layouts differ by rounding alone: by some 1e-6 of a parameter's moments after four steps."""
    found = first_moments(run)
    assert found.keys() == wanted.keys()
    for name, moment in found.items():
        difference = (moment - wanted[name]).norm() / wanted[name].norm()
        assert difference < 1e-4, f"{name} {difference:.1e}"
