"""Environment variables that are secrets of one kind of service, by their names."""

from __future__ import annotations

BUCKET_PREFIXES = ("AWS_", "GOOGLE_", "AZURE_")
SINK_PREFIXES = ("WANDB_", "SWANLAB_", "MLFLOW_", "TRACKIO_")
HUB_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def is_of_bucket(name: str) -> bool:
    """Whether the vendors' tools, and ours, open a bucket by this variable."""
    return name.startswith(BUCKET_PREFIXES)


def is_of_sink(name: str) -> bool:
    """Whether the controller's sinks are reached by this variable; trackio also takes the hub's token."""
    return name.startswith(SINK_PREFIXES)


def is_of_hub(name: str) -> bool:
    """Whether this variable opens a hub of models and data sets."""
    return name in HUB_TOKENS


def is_credential(name: str) -> bool:
    """Whether functions of others, which the reward service runs, must not see it."""
    return is_of_bucket(name) or is_of_sink(name) or is_of_hub(name)
