"""What is cut out of vllm-ascend's worker."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.contract_run.npu_worker import CALLED, NZ, cut_methods, make_methods
from tests.contract_run.packages import VLLM_ASCEND, Missing, unpack_vllm_ascend

WORKER = """
class NPUWorker(Base):
    def init_weight_transfer_engine(self, info): self._check()
    def start_weight_update(self): self._check(); self.started = torch.npu.synchronize()
    def update_weights(self, info): self.elsewhere()
    def finish_weight_update(self): raise ValueError("out of order")
    def _check(self): self._deeper()
    def _deeper(self): ...
    def sleep(self): raise AssertionError("not ours")
"""


def test_methods_that_we_call_and_what_they_call_are_cut_out() -> None:
    names = {method.name for method in cut_methods(WORKER)}
    assert names == {*CALLED, "_check", "_deeper"}


def test_a_method_that_is_gone_is_named() -> None:
    with pytest.raises(KeyError, match="finish_weight_update"):
        cut_methods(WORKER.replace("def finish_weight_update", "def finish"))


def test_they_run_on_another_class() -> None:
    worker: Any = type("Worker", (), dict(make_methods(WORKER)))()
    worker.start_weight_update()
    assert worker.started is None
    with pytest.raises(ValueError, match="out of order"):
        worker.finish_weight_update()


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
