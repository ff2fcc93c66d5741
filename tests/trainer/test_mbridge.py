"""Our mapping against that of mbridge 0.15.1, which was written by others for the same models.

It comes with the extra `dev`; where it is not installed these tests are skipped.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from services.trainer.megatron.architecture import read_architecture
from tests.trainer.models import FAMILIES
from trimaran.config import RunConfig

pytestmark = pytest.mark.usefixtures("single_rank")

# mbridge knows the layers of TransformerEngine only, where norms are inside the matrices after them and a
# layer's experts are one module.
THEIRS = (
    (r"input_layernorm\.weight", "self_attention.linear_qkv.layer_norm_weight"),
    (r"experts\.local_experts\.(\d+)\.(linear_fc\d)\.weight", r"experts.\2.weight\1"),
)
DENSE_THEIRS = (r"pre_mlp_layernorm\.weight", "mlp.linear_fc1.layer_norm_weight")


def their_name(name: str, has_experts: bool) -> str:
    for ours, theirs in THEIRS if has_experts else (*THEIRS, DENSE_THEIRS):
        name = re.sub(ours, theirs, name)
    return name


@pytest.mark.parametrize("family", FAMILIES)
def test_mbridge_fills_our_parameters_with_the_same_bits(
    family: str, make_config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    mbridge = pytest.importorskip("mbridge", reason="mbridge, another mapping, is not installed")
    qwen2: Any = importlib.import_module("mbridge.models.qwen2").Qwen2Bridge
    from services.trainer.megatron.policy import MegatronPolicy

    # A tied model changes it for all later ones, those of Qwen3 among them.
    monkeypatch.setattr(qwen2, "_DIRECT_MAPPING", dict(qwen2._DIRECT_MAPPING))
    config = make_config(family)
    policy = MegatronPolicy(config, read_architecture(config.model.path), torch.device("cpu"))
    [stage] = policy._stages
    ours: dict[str, torch.Tensor] = {
        their_name(name, "moe" in family): weight.detach() for name, weight in stage.named_weights()
    }
    filled = {name: torch.full_like(weight, float("nan")) for name, weight in ours.items()}
    model: Any = SimpleNamespace(decoder=stage.decoder, state_dict=lambda: filled)
    bridge = mbridge.AutoBridge.from_pretrained(str(config.model.path), dtype=torch.float32)
    bridge.load_weights([model], str(config.model.path))
    assert len(filled) == len(list(stage.parameters()))
    different = [name for name, weight in ours.items() if not torch.equal(filled[name], weight)]
    assert not different
