"""Captured graphs: which device has them, and what the configuration says of it."""

import pytest

from services.rollout.vllm.settings import engine_arguments, is_eager
from trimaran.config import parse_config
from trimaran.errors import InputError
from trimaran.host.device import Device

TREE = {
    "model": {"path": "m"},
    "data": {"train": "t"},
    "reward": {"rules": {"exact": 1}},
}


@pytest.mark.parametrize(
    ("kind", "chosen", "eager"),
    [
        ("npu", "auto", True),
        ("cpu", "auto", True),
        ("cuda", "auto", False),
        ("npu", False, False),
        ("cuda", True, True),
    ],
)
def test_graphs_are_captured_on_cuda_and_where_they_are_asked_for(kind, chosen, eager):
    config = parse_config(TREE | {"rollout": {"eager": chosen}})
    device = Device(kind, "any")
    assert is_eager(config, device) is eager
    assert engine_arguments(config, device, None)["enforce_eager"] is eager


def test_the_key_takes_nothing_else():
    with pytest.raises(InputError, match="rollout.eager: must be auto, true or false"):
        parse_config(TREE | {"rollout": {"eager": "sometimes"}})
