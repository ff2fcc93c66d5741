"""What a submitted specification may name and cost. It is data: nothing of it is run or opened here.

What it may name comes from the operator: roots of models and data, rules, functions, hosts of
plugins. A path is resolved once, checked, and handed on resolved. A process that may write below a root can
still exchange a file between this check and its use, so a root with parts that anybody may write is
refused; people who share a root with a group trust that group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from services.manager.admission.code import with_real_code
from services.manager.admission.costs import Costs, check_costs
from services.manager.admission.roots import InRoots, naming
from services.manager.admission.specification import read_specification
from services.manager.settings import AllowSection, LimitsSection
from trimaran.config import (
    Endpoints,
    NetworkSection,
    RolloutSection,
    RunConfig,
    RunSection,
    TrainerSection,
    config_to_tree,
    parse_config,
)
from trimaran.errors import ForbiddenError, InputError, LimitError

MAX_NAME_BYTES = 100


def admit(
    text: str,
    overrides: Sequence[str],
    allow: AllowSection | None,
    limits: LimitsSection,
    network: NetworkSection | None = None,
) -> tuple[RunConfig, Costs]:
    """The configuration to run, with resolved paths, and what it may cost.

    `allow` None: whatever the manager's user may read; paths are absolute then. `network`: the
    operator's, of all runs; None leaves it to each run. Every refusal names
    the field. Raises InputError (broken), ForbiddenError (not allowed), LimitError (too much).
    """
    config = parse_config(read_specification(text, overrides), source="config")
    _refuse(_operators_own(config))
    if network is not None:
        if config.network not in (network, NetworkSection()):
            raise ForbiddenError(
                f"network: the operator has said it for all runs ({_describe(network)}); leave it out"
            )
        tree = {**config_to_tree(config), "network": network.model_dump(mode="json")}
        config = parse_config(tree, source="config")
    if len(config.run.name.encode()) > MAX_NAME_BYTES:
        raise LimitError(f"run.name: at most {MAX_NAME_BYTES} bytes; its folder is called so")
    if allow is None:
        config = _placed(config, InRoots("models", None), InRoots("data", None))
    else:
        models, data = InRoots("models", allow.models), InRoots("data", allow.data)
        config = _placed(config, models, data)
        without = "leave it out, and it lies in the run's folder"
        _check_place("run.payloads", config.run.payloads, allow.payloads, without)
        _check_place("run.checkpoints", config.run.checkpoints, allow.payloads, without)
        has_it = "leave it out where every host has the model"
        _check_place("model.source", config.model.source, allow.sources, has_it)
        _check_sinks(config, allow)
        config = with_real_code(config, allow)
    return config, check_costs(config, limits)


def _refuse(faults: Iterable[str]) -> None:
    if lines := list(faults):
        raise ForbiddenError("\n".join(lines))


def _operators_own(config: RunConfig) -> Iterable[str]:
    """Keys that the manager fills in itself."""
    own = (
        ("run.folder", config.run.folder, RunSection().folder),
        ("endpoints", config.endpoints, Endpoints()),
        ("rollout.devices", config.rollout.devices, RolloutSection().devices),
        ("trainer.devices", config.trainer.devices, TrainerSection().devices),
    )
    for key, given, default in own:
        if given != default:
            yield f"{key}: the manager chooses it; leave it out"


def _describe(network: NetworkSection) -> str:
    return f"subnet {network.subnet or 'loopback'}, ports {network.ports}"


def _placed(config: RunConfig, models: InRoots, data: InRoots) -> RunConfig:
    # Hosts that have a model that may be fetched need not be the manager's.
    with naming("model.path", config.model.path):
        elsewhere = config.model.source is not None and not config.model.path.is_dir()
    find = models.elsewhere if elsewhere else models.folder
    model = find(config.model.path, "model.path")
    files = {
        key: tuple(
            one.model_copy(update={"path": data.file(one.path, f"data.{key}")})
            for one in getattr(config.data, key)
        )
        for key in ("train", "validation")
    }
    load = config.trainer.load and models.folder(config.trainer.load, "trainer.load")
    return config.model_copy(
        update={
            "model": config.model.model_copy(update={"path": model}),
            "trainer": config.trainer.model_copy(update={"load": load}),
            "data": config.data.model_copy(update=files),
        }
    )


def _check_place(key: str, url: str | None, allowed: Sequence[str], remedy: str) -> None:
    if url is not None and not any(_lies_below(url, place) for place in allowed):
        known = ", ".join(allowed) or "none"
        raise ForbiddenError(
            f"{key}: {url} is not below a place that the operator allows ({known}); {remedy}"
        )


def _lies_below(url: str, place: str) -> bool:
    """Folders by their real paths; in a bucket a key is what is written."""
    if "://" not in url:
        return "://" not in place and Path(url).resolve().is_relative_to(Path(place).resolve())
    if ".." in url.split("/"):  # some servers take it for the folder above
        return False
    return url == place or url.startswith(place.rstrip("/") + "/")


def _check_sinks(config: RunConfig, allow: AllowSection) -> None:
    if refused := [name for name in config.metrics.sinks if name not in allow.sinks]:
        known = ", ".join(allow.sinks) or "none"
        raise ForbiddenError(
            f"metrics.sinks: {', '.join(refused)} is not among the sinks that the operator allows"
            f" ({known}); leave it out"
        )


def check_request_id(request_id: str) -> None:
    """Raises InputError naming the field."""
    if not 1 <= len(request_id) <= 128 or not request_id.isprintable():
        raise InputError("request_id: 1 to 128 printable characters; a UUID is one")
