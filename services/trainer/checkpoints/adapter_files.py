"""A folder with LoRA adapters that `peft` loads: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from services.trainer.checkpoints.tensor_file import Spec, TensorFile
from trimaran.config import LoraSection, RunConfig
from trimaran.host.places import put_in_place, sync
from trimaran.model.folder import LANGUAGE, ModelFacts
from weights.memory.host_memory import DTYPE_NAMES

PREFIX = "base_model.model."
"""Before the names of modules, as `peft` wraps the model."""


def write_adapter_folder(
    target: Path,
    config: RunConfig,
    facts: ModelFacts,
    shapes: Mapping[str, tuple[int, ...]],
    tensors: Iterable[tuple[str, torch.Tensor]],
) -> None:
    """`shapes` and `tensors` by names such as model.layers.0.self_attn.q_proj.lora_A.weight.

    Appears under its name only when it is whole and on the disk.
    """
    assert config.trainer.lora, "a run without trainer.lora has no adapters"
    temporary = target.with_name(f"{target.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        text = json.dumps(_describe(config.trainer.lora, config.model.path, facts), indent=2)
        (temporary / "adapter_config.json").write_text(text + "\n", encoding="utf-8")
        dtype = DTYPE_NAMES[getattr(torch, config.model.dtype)]
        specs = (Spec(_name(name, facts), dtype, shape) for name, shape in shapes.items())
        with TensorFile(temporary / "adapter_model.safetensors", specs, {"format": "pt"}) as file:
            for name, tensor in tensors:
                file.write(_name(name, facts), tensor)
        for path in temporary.iterdir():
            sync(path)
        put_in_place(temporary, target)
    except BaseException:  # a disk that it has filled would stay full
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _name(tensor: str, facts: ModelFacts) -> str:
    """`peft` goes by the names of transformers' modules. Folders of Qwen2.5-VL may have others, by which
    it would find nothing and only warn."""
    if facts.vision and not tensor.startswith(LANGUAGE):
        tensor = LANGUAGE + tensor.removeprefix(facts.language_prefix)
    return PREFIX + tensor


def _describe(lora: LoraSection, model: Path, facts: ModelFacts) -> dict[str, object]:
    """The keys of `peft.LoraConfig` that say how the adapters are to be used."""
    targets: object = list(lora.targets)
    if facts.vision:  # the tower has modules of the same names; a text is a pattern for whole names
        targets = rf".*\.layers\.\d+\..*\.({'|'.join(lora.targets)})"
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(model.resolve()),  # a relative one may be a name of a hub
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "target_modules": targets,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "inference_mode": True,
    }
