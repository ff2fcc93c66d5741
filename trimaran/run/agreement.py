"""All hosts of a run must have one model, and a controller that moves the data that it had.

Weights are proven on their way from the trainer to each replica. A tokenizer, a chat template or a
config.json is not: with another one a replica would generate other tokens than the trainer means. What
ranks of a trainer on several hosts load themselves is not proven either. The first process notes the
digests of its files in the run's store, each further process compares its own.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Mapping
from hashlib import file_digest
from pathlib import Path

from trimaran.errors import InputError
from trimaran.store import ConflictError, Store

MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "vocab.*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "preprocessor_config.json",
    "processor_config.json",
)
"""What stands beside the weights and decides on tokens and pixels."""


def model_key(run_id: str) -> str:
    """Store record {"who": "trainer-0", "host": "a", "digests": {"config.json": "9f86…"}}."""
    return f"model/{run_id}"


async def forget_model(store: Store, run_id: str) -> None:
    """Before the processes of a launch: a model that was fixed since the last one may differ."""
    await store.delete(model_key(run_id))


async def agree_on_model(store: Store, run_id: str, who: str, folder: Path) -> None:
    """Raises InputError where this host's model is not that of the process that came first.

    Example: await agree_on_model(store, "demo", "rollout-1", Path("models/SmolLM2-135M-Instruct"))
    """
    await _agree(
        *(store, model_key(run_id), who, digests_of(_model_files(folder)), f"model.path: {folder}"),
        "give every host the same one, or name model.source and model.digest",
    )


async def agree_on_weights(store: Store, run_id: str, who: str, folder: Path) -> None:
    """The same of the weights that a rank of the trainer starts from, and has as its reference. Reads
    them all."""
    digests = await asyncio.to_thread(lambda: digests_of(_weight_files(folder)))
    await _agree(
        *(store, f"weights/{run_id}", who, digests, f"model.path: {folder}"),
        "give every host of the trainer the weights that the run began with",
    )


async def agree_on_checkpoint(store: Store, run_id: str, who: str, state: Path) -> None:
    """The same of the checkpoint of another run with which a rank begins. `state`: its state.json, which has the
    digests of all that is in it."""
    await _agree(
        *(store, f"checkpoint/{run_id}", who, digests_of([state]), f"trainer.load: {state.parent}"),
        "a run begins with one checkpoint: start it again, and name one that stays",
    )


async def agree_on_data(store: Store, run_id: str, files: Iterable[Path]) -> None:
    """The same of the controller's data: a prompt's number is its place in them, also after a move."""
    digests = {str(path): digests_of([path])[path.name] for path in files}  # two may have one name
    await _agree(
        *(store, f"data/{run_id}", "controller", digests, "data"),
        "a run keeps the data that it began with; bring them back, or start a new run",
    )


async def _agree(
    store: Store, key: str, who: str, digests: Mapping[str, str], what: str, remedy: str
) -> None:
    own = {"who": who, "host": socket.gethostname(), "digests": digests}
    try:
        await store.put(key, own, expected=0)
        return
    except ConflictError:
        record = await store.get(key)
    if record and (others := differences(digests, record.value["digests"])):
        before = record.value
        raise InputError(
            f"{what} is not what {before['who']} on {before['host']} had, by its"
            f" {', '.join(others)}; {remedy}"
        )


def _model_files(folder: Path) -> set[Path]:
    return {path for pattern in MODEL_FILES for path in folder.glob(pattern) if path.is_file()}


def _weight_files(folder: Path) -> set[Path]:
    return {*folder.glob("*.safetensors"), *folder.glob("*.safetensors.index.json")}


def digests_of(paths: Iterable[Path]) -> dict[str, str]:
    """SHA-256 by name."""
    found: dict[str, str] = {}
    for path in sorted(paths):
        with path.open("rb") as file:
            found[path.name] = file_digest(file, "sha256").hexdigest()
    return found


def differences(own: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Names of files that differ, or that only one of the two has."""
    return sorted(name for name in own.keys() | other.keys() if own.get(name) != other.get(name))
