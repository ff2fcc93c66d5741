"""What a resume may change of a run's configuration. None of it changes what a recorded step has trained."""

from __future__ import annotations

from typing import Any

from trimaran.config import (
    LENGTH_KEYS,
    MetricsSection,
    RunConfig,
    ValidationSection,
    config_to_tree,
)

LAYOUT_KEYS = tuple(
    f"trainer.{key}"
    for key in (
        *("tensor_parallel", "pipeline_parallel", "pipeline_layers", "virtual_stages"),
        *("data_parallel", "context_parallel", "expert_parallel", "expert_tensor_parallel"),
        *("sequence_parallel", "distributed_optimizer", "offload", "devices", "threads"),
        *("micro_batch_tokens", "recompute"),
    )
)
"""How the trainer computes the same steps."""
CHECKPOINT_KEYS = ("checkpoint_every", "keep_checkpoints", "keep_best", "checkpoint_models")
"""Keys of `run`. `best_by` is not among them: saved checkpoints have their scores by the one before."""
PLANNED_KEYS = (
    *(f"run.{key}" for key in (*LENGTH_KEYS, *CHECKPOINT_KEYS)),
    *(f"validation.{key}" for key in ValidationSection.model_fields if key != "only"),
    *(f"metrics.{key}" for key in MetricsSection.model_fields),
)
"""How far the run goes on, and what it leaves behind. The ledger says from which step on they are so."""


def planned_settings(config: RunConfig) -> dict[str, Any]:
    """The values of PLANNED_KEYS, as JSON holds them."""
    tree = config_to_tree(config)
    pairs = (key.split(".") for key in PLANNED_KEYS)
    return {f"{section}.{key}": tree[section][key] for section, key in pairs}
