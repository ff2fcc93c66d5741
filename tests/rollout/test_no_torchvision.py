"""vLLM's and transformers' questions for torchvision, which have an answer without it."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from services.rollout.vllm import no_torchvision
from tests.tiny_vision import write_tiny_vision

without = pytest.mark.skipif(find_spec("torchvision") is not None, reason="torchvision is here")

LOAD = """
import sys
from pathlib import Path
from services.rollout.vllm.no_torchvision import NoVideos, do_without_torchvision

do_without_torchvision(Path(sys.argv[1]))
from transformers import Qwen2_5_VLProcessor, Qwen3VLProcessor
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

kind = {"qwen2_5_vl": Qwen2_5_VLProcessor, "qwen3_vl": Qwen3VLProcessor}[sys.argv[2]]
processor = kind.from_pretrained(sys.argv[1])
print(type(processor.image_processor).__name__, isinstance(processor.video_processor, NoVideos))
"""


@without
@pytest.mark.e2e
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_the_models_processor_loads(tmp_path, family):
    folder = write_tiny_vision(tmp_path / "model", family)
    command = [sys.executable, "-c", LOAD, str(folder), family]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["Qwen2VLImageProcessorPil", "True"]
    plain = [line for line in LOAD.splitlines() if "do_without" not in line or "import" in line]
    command[2] = "\n".join(plain)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode, "it loads without our help now: no_torchvision.py can go"


def test_with_torchvision_nothing_is_touched(tmp_path, monkeypatch):
    from transformers.models.auto.video_processing_auto import AutoVideoProcessor

    monkeypatch.setattr(no_torchvision, "find_spec", lambda name: object())
    before = AutoVideoProcessor.from_pretrained
    no_torchvision.do_without_torchvision(tmp_path / "not even read")
    assert AutoVideoProcessor.from_pretrained == before
