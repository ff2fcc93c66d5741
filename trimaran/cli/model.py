"""`trimaran model push`: a model to where the hosts of a run fetch it."""

from __future__ import annotations

from pathlib import Path

from trimaran.model_folder import read_model_folder
from trimaran.model_manifest import push_model
from trimaran.places import open_place


def push(folder: str, url: str) -> int:
    """Prints the section of a run's YAML for it. Raises InputError for what is no model."""
    read_model_folder(Path(folder))
    place = open_place(url, "URL")
    digest = push_model(Path(folder), place)
    print(f"model:\n  path: {Path(folder).name}\n  source: {place.url}\n  digest: {digest}")
    return 0
