"""What a configuration may name, and what stands behind it, are the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.configs import configure
from tests.extending.packages import install
from trimaran import choices
from trimaran.choices import Choices
from trimaran.config import (
    ModelSection,
    PluginSection,
    RunConfig,
    TransportName,
)
from trimaran.config.section import Options
from trimaran.errors import InputError
from trimaran.types import Transport

Add = Callable[..., None]
CONFIGURED = {
    ("rollout", "engine"): choices.ENGINES,
    ("algorithm", "loss"): choices.LOSSES,
    ("algorithm", "advantage"): choices.ADVANTAGES,
    ("algorithm", "aggregation"): choices.AGGREGATIONS,
}
NEEDED_OPTIONS = {"fixed": {"type": "fixed", "tokens": 8}}
ALL = [value for value in vars(choices).values() if isinstance(value, Choices)]


class ToyEngine:
    reports_experts = spans_hosts = sleeps = False

    def __init__(self, config: RunConfig, device: Any) -> None:
        self.config, self.device = config, device


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Add:
    """add(group, name, place) installs a package with that entry point."""

    def install_one(group: str, name: str, place: str, package: str = "toy", **files: str) -> None:
        sources = {f"{module}.py": text for module, text in files.items()}
        folder = install(tmp_path / package, {group: {name: place}}, sources, package)
        monkeypatch.syspath_prepend(folder)

    return install_one


@pytest.mark.parametrize(("section", "key"), CONFIGURED)
def test_what_is_built_in_may_be_named_and_nothing_else(section: str, key: str) -> None:
    table = CONFIGURED[section, key]
    for name in table.built_in:
        given = NEEDED_OPTIONS.get(name, name)
        found = getattr(getattr(configure(**{section: {key: given}}), section), key)
        assert (found.type if isinstance(found, Options) else found) == name
    near, names = next(iter(table.built_in)), ", ".join(table.built_in)
    reported = (
        f"{section}.{key}: {near + 'x'!r} is unknown; did you mean {near}? (known here: {names};"
        f" installed packages add entry points to {table.group})"
    )
    with pytest.raises(InputError, match=re.escape(reported)):
        configure(**{section: {key: near + "x"}})


@pytest.mark.parametrize("table", ALL, ids=lambda table: table.group)
def test_every_built_in_name_leads_somewhere(table: Choices) -> None:
    pytest.importorskip("torch", reason="torch is not installed; engines and losses need it")
    assert list(table.built_in) == table.names()
    assert all(table.load(name) is not None for name in table.built_in)


def test_an_engine_of_an_installed_package(add: Add) -> None:
    from services.rollout.engine import create_engine

    add("trimaran.engines", "toy", f"{__name__}:ToyEngine")
    assert choices.ENGINES.names() == ["vllm", "transformers", "toy"]
    config, device = configure(rollout={"engine": "toy"}), object()
    engine: Any = create_engine(config, device)  # type: ignore[arg-type]
    assert type(engine) is ToyEngine
    assert (engine.config, engine.device) == (config, device)
    replays = configure(rollout={"engine": "toy"}, trainer={"router": {"replay": True}})
    with pytest.raises(InputError, match="replay: rollout.engine toy does not report"):
        create_engine(replays, device)  # type: ignore[arg-type]


def test_options_without_a_type_are_those_of_the_default() -> None:
    config = configure(algorithm={"loss": {"clip_high": 0.28}})
    found: Any = config.algorithm.loss
    assert (found.type, found.clip_high) == ("ppo_clip", 0.28)
    with pytest.raises(InputError, match=r"algorithm\.loss: gspo: dual_clip: unknown key"):
        configure(algorithm={"loss": {"type": "gspo", "dual_clip": 3.0}})
    with pytest.raises(InputError, match=r"algorithm\.loss: must be a name, or a section"):
        configure(algorithm={"loss": 3})


def test_what_is_not_named_is_not_imported(add: Add) -> None:
    add("trimaran.losses", "other", "explosive:loss", explosive="raise SystemExit")
    assert choices.LOSSES.check("other") == "other"
    assert callable(choices.LOSSES.load("ppo_clip"))
    configure()


@pytest.mark.parametrize("name", ["ppo_clip", "mine"])
def test_a_name_that_two_have_is_refused_and_both_are_named(name: str, add: Add) -> None:
    add("trimaran.losses", name, "one:loss", package="first")
    add("trimaran.losses", name, "two:loss", package="second")
    with pytest.raises(InputError, match=r"algorithm\.loss: '\w+' is the name of ") as refused:
        configure(algorithm={"loss": name})
    text = str(refused.value)
    for package, module in (("first", "one"), ("second", "two")):
        assert f"{package} 0.1's entry point trimaran.losses: {name} = {module}:loss" in text
    assert ("built-in services.trainer.grpo.losses:PpoClip" in text) is (name == "ppo_clip")
    assert text.endswith("rename the package's entry point, or uninstall the package")


@pytest.mark.parametrize(
    ("place", "cause"),
    [
        ("nowhere:loss", "ModuleNotFoundError: No module named 'nowhere'"),
        ("broken:loss", "RuntimeError: no licence"),
        ("empty:loss", "AttributeError: module 'empty' has no attribute 'loss'"),
    ],
)
def test_a_broken_package_is_named_with_its_remedy(place: str, cause: str, add: Add) -> None:
    files = {"broken": "raise RuntimeError('no licence')", "empty": ""}
    add("trimaran.losses", "mine", place, package="my-losses", **files)
    reported = (
        f"my-losses 0.1's entry point trimaran.losses: mine = {place} cannot be loaded ({cause});"
        " fix or uninstall the package"
    )
    with pytest.raises(InputError, match=f"^{re.escape(reported)}$"):
        choices.LOSSES.load("mine")


def test_transports_are_those_of_the_wire() -> None:
    """Shared memory is never asked for: `auto` takes it where both ends are on one machine."""
    assert {*get_args(TransportName), "memory"} == {"auto", *(one.value for one in Transport)}


def test_dtypes_are_those_of_torch_and_of_the_weight_plane() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed; its dtypes are compared")
    from weights.memory.host_memory import DTYPE_NAMES

    names = get_args(ModelSection.model_fields["dtype"].annotation)
    assert names
    assert {getattr(torch, name) for name in names} <= DTYPE_NAMES.keys()


def test_plugin_protocols_are_those_that_are_spoken() -> None:
    from services.reward.plugins.calling.client import ASK

    assert set(get_args(PluginSection.model_fields["protocol"].annotation)) == ASK.keys()
