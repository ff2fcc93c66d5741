"""`trimaran model push`: a model to where the hosts of a run fetch it."""

from __future__ import annotations

import argparse
from pathlib import Path

from trimaran.host.places import open_place
from trimaran.model.folder import read_model_folder
from trimaran.model.manifest import push_model


def push(options: argparse.Namespace) -> int:
    """Prints the section of a run's YAML for it. Raises InputError for what is no model."""
    folder = Path(options.folder)
    read_model_folder(folder)
    place = open_place(options.url, "URL")
    digest = push_model(folder, place)
    print(f"model:\n  path: {folder.name}\n  source: {place.url}\n  digest: {digest}")
    return 0
