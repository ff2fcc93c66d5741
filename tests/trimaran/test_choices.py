"""What a configuration may name, and what stands behind it, are the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import pytest

from trimaran import choices
from trimaran.config import ModelSection, PluginSection, RunConfig, TransportName, parse_config
from trimaran.device import BACKENDS, VISIBLE_DEVICES, DeviceName
from trimaran.errors import InputError
from trimaran.types import Transport

TABLES = {
    ("rollout", "engine"): choices.ENGINES,
    ("algorithm", "aggregation"): choices.AGGREGATIONS,
    ("weight_sync", "digest"): choices.DIGESTS,
}


def config_of(**sections: Any) -> RunConfig:
    needed = {"model": {"path": "m"}, "data": {"train": "t"}, "reward": {"rules": {"exact": 1}}}
    return parse_config({**needed, **sections})


class ToyEngine:
    def __init__(self, config: RunConfig, device: Any) -> None:
        self.config, self.device = config, device


def first_only(num_tokens_B: Sequence[int]) -> list[float]:
    return [1.0, *(0.0 for _ in num_tokens_B[1:])]


def count_bytes(piece: Any) -> str:
    return f"{len(piece):032x}"


@pytest.mark.parametrize(("section", "key"), TABLES)
def test_what_is_in_the_table_may_be_named_and_nothing_else(section: str, key: str) -> None:
    table = TABLES[section, key]
    for name in table:
        assert getattr(getattr(config_of(**{section: {key: name}}), section), key) == name
    told = rf"^configuration: {section}.{key}: must be {' or '.join(table)} \(given: 'sglang'\)$"
    with pytest.raises(InputError, match=told):
        config_of(**{section: {key: "sglang"}})


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: next(iter(table)))
def test_every_entry_leads_to_something_that_can_be_called(table: dict[str, str]) -> None:
    pytest.importorskip("torch", reason="torch is not installed; engines and losses need it")
    assert all(callable(choices.load(place)) for place in table.values())


def test_an_engine_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from services.rollout.engine import create_engine

    monkeypatch.setitem(choices.ENGINES, "toy", f"{__name__}:ToyEngine")
    config, device = config_of(rollout={"engine": "toy"}), object()
    engine: Any = create_engine(config, device)  # type: ignore[arg-type]
    assert type(engine) is ToyEngine
    assert (engine.config, engine.device) == (config, device)


def test_an_aggregation_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="torch is not installed; the trainer needs it")
    from services.trainer.batch import prepare_mini_batch
    from tests.trainer.batches import random_batch

    monkeypatch.setitem(choices.AGGREGATIONS, "toy", f"{__name__}:first_only")
    config = config_of(algorithm={"aggregation": "toy", "kl_coefficient": 1})
    (first, *others) = prepare_mini_batch(random_batch(1).groups, config.algorithm)
    assert [sample.weight for sample in first] == [1.0, *(0.0 for _ in first[1:])]
    assert not any(sample.weight for group in others for sample in group)


def test_a_digest_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed; weight sync needs it")
    from services.weight_sync.data.digest import digest_value

    monkeypatch.setitem(choices.DIGESTS, "toy", f"{__name__}:count_bytes")
    config = config_of(weight_sync={"digest": "toy"})
    assert digest_value(config.weight_sync.digest, torch.zeros(6)) == f"{24:032x}"


def test_devices_have_a_backend_and_a_variable_each() -> None:
    assert get_args(DeviceName) == ("auto", *BACKENDS)
    assert BACKENDS.keys() == VISIBLE_DEVICES.keys()


def test_transports_are_those_of_the_wire() -> None:
    """Shared memory is never asked for: `auto` takes it where both ends are on one machine."""
    assert {*get_args(TransportName), "memory"} == {"auto", *(one.value for one in Transport)}


def test_dtypes_are_those_of_torch_and_of_the_weight_plane() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed; its dtypes are compared")
    from services.weight_sync.data.memory import DTYPE_NAMES

    names = get_args(ModelSection.model_fields["dtype"].annotation)
    assert names
    assert {getattr(torch, name) for name in names} <= DTYPE_NAMES.keys()


def test_plugin_protocols_are_those_that_are_spoken() -> None:
    from services.reward.plugins.plugin import ASK

    assert set(get_args(PluginSection.model_fields["protocol"].annotation)) == ASK.keys()
