"""The adapters that a run exports, loaded by `peft`, against the merged model that it exports.

`peft` comes with the extra `dev`; where it is not installed its tests are skipped.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from services.trainer.checkpoints.adapter_files import write_adapter_folder
from services.trainer.checkpoints.model_files import write_model_folder
from services.trainer.checkpoints.tensor_file import Spec
from tests.tiny_vision import FAMILIES as VISION_FAMILIES
from tests.tiny_vision import write_tiny_vision
from tests.trainer.conftest import MakeConfig
from tests.trainer.megatron.parameters.test_lora import LORA, SOME, stir
from tests.trainer.megatron.vision.test_vision import make_config as make_vision_config
from tests.trainer.test_policy import make_policy
from trimaran.config import RunConfig
from trimaran.model.folder import read_model_folder

pytestmark = pytest.mark.usefixtures("single_rank")
ATTENTION = {**LORA, "targets": ["q_proj", "k_proj", "v_proj", "o_proj"]}
TOKENS = torch.tensor([[5, 17, 80, 9, 33, 60, 21, 8]])


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    return model.eval()(input_ids=TOKENS).logits


@pytest.fixture(scope="session")
def peft() -> Any:
    return pytest.importorskip("peft", reason="needs the package peft, of the extra dev")


def compare(peft: Any, auto: Any, config: RunConfig, folder: Path) -> None:
    """Of a policy that has learned something."""
    policy = make_policy(config)
    stir(policy)
    specs = (Spec(info.name, info.dtype, info.shape) for info in policy.tensors)
    merged, adapter = folder / "model", folder / "model-adapter"
    write_model_folder(merged, config.model.path, specs, policy.export(), config.model.dtype)
    facts, shapes = read_model_folder(config.model.path), policy.adapter_shapes
    write_adapter_folder(adapter, config, facts, shapes, policy.export_adapters())
    described = json.loads((adapter / "adapter_config.json").read_text())
    assert described["base_model_name_or_path"] == str(Path(config.model.path).absolute())
    base = auto.from_pretrained(config.model.path, dtype=torch.float32)
    before = logits(base)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # such as of adapters that the file lacks
        model = peft.PeftModel.from_pretrained(base, adapter)
    torch.testing.assert_close(
        logits(model), logits(auto.from_pretrained(merged, dtype=torch.float32)), rtol=0, atol=2e-5
    )
    assert (logits(model) - before).abs().max() > 0.1


@pytest.mark.parametrize(
    ("family", "lora"),
    [
        ("qwen2", LORA),
        ("llama", SOME),
        ("qwen3", LORA),
        ("qwen2_moe", ATTENTION),
        ("qwen3_moe", ATTENTION),
    ],
)
def test_peft_and_the_merged_model_give_the_same_logits(
    family: str, lora: dict[str, Any], peft: Any, make_config: MakeConfig, tmp_path: Path
) -> None:
    config = make_config(family, trainer={"lora": lora})
    compare(peft, AutoModelForCausalLM, config, tmp_path)


@pytest.mark.parametrize("family", VISION_FAMILIES)
def test_so_they_do_for_the_language_model_behind_a_vision_tower(
    family: str, peft: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny_vision(tmp_path / "base", family)
    lora = ATTENTION if family.endswith("moe") else LORA
    monkeypatch.chdir(tmp_path)
    config = make_vision_config(Path("base"), lora=lora)
    compare(peft, AutoModelForImageTextToText, config, tmp_path)
