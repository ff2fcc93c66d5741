"""What is cut out of vllm-ascend's worker."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.contract_run.npu_worker import NZ, make_methods
from tests.contract_run.packages import VLLM_ASCEND, Missing, unpack_vllm_ascend


class Engine:
    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: self.calls.append(name)


@pytest.mark.parametrize("version", VLLM_ASCEND)
def test_the_real_ones_refuse_an_update_within_an_update(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        folder = unpack_vllm_ascend(version, tmp_path)
    except Missing as missing:
        pytest.skip(str(missing))
    monkeypatch.setenv(NZ, "0")
    reload: Any = SimpleNamespace(initialize_layerwise_reload=lambda model: None)
    monkeypatch.setitem(sys.modules, "vllm.model_executor.model_loader.reload", reload)
    source = (folder / "vllm_ascend/worker/worker.py").read_text("utf-8")
    worker: Any = type("Worker", (), dict(make_methods(source)))()
    worker.weight_transfer_engine, worker._weight_update_active = Engine([]), False
    worker.model_runner, worker.device = SimpleNamespace(model=None), "cpu"
    with pytest.raises(RuntimeError, match="must be called before"):
        worker.update_weights({})
    worker.start_weight_update()
    with pytest.raises(RuntimeError, match="already active"):
        worker.start_weight_update()
