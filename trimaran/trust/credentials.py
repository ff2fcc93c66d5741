"""Environment variables that are secrets of one kind of service, by their names."""

from __future__ import annotations

BUCKET_PREFIXES = ("AWS_", "GOOGLE_", "AZURE_")
SINK_PREFIXES = ("WANDB_", "SWANLAB_", "MLFLOW_", "TRACKIO_")
HUB_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def is_of_bucket(name: str) -> bool:
    """Of the variables by which the vendors' tools, and ours, open a bucket."""
    return name.startswith(BUCKET_PREFIXES)


def is_of_sink(name: str) -> bool:
    """Of those by which the controller's sinks are reached; trackio also takes the hub's token."""
    return name.startswith(SINK_PREFIXES)


def is_of_hub(name: str) -> bool:
    """Of those that open a hub of models and data sets."""
    return name in HUB_TOKENS


def is_credential(name: str) -> bool:
    """Whether functions of others, which the reward service runs, must not see it."""
    return is_of_bucket(name) or is_of_sink(name) or is_of_hub(name)
