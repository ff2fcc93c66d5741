"""vLLM's CPU worker with the weight updates of vllm-ascend's NPUWorker, cut out of its source.

`CONTRACT_VLLM_ASCEND` names the folder that holds the package `vllm_ascend`. None of it is imported.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from services.rollout.vllm.ascend import ADDITIONAL_CONFIG

CALLED = (
    "init_weight_transfer_engine",
    "start_weight_update",
    "update_weights",
    "finish_weight_update",
)
"""What services/rollout/vllm/workers.py calls."""
CLASS = "NPUWorker"
NZ = "VLLM_ASCEND_ENABLE_NZ"


def replace_worker(cpu_worker: Any) -> None:
    """`cpu_worker`: the module vllm.v1.worker.cpu_worker, just imported."""
    source = Path(os.environ["CONTRACT_VLLM_ASCEND"], "vllm_ascend/worker/worker.py")
    methods = make_methods(source.read_text("utf-8"))
    cpu_worker.CPUWorker = type("CPUWorker", (cpu_worker.CPUWorker,), methods)


def make_methods(source: str) -> dict[str, Callable[..., Any]]:
    """Of `cut_methods`, made to run here; they see the format of weights that an NPU's engine gets."""
    nodes = cut_methods(source)
    space: dict[str, Any] = {
        "torch": TorchWithNpu("torch"),
        "envs_ascend": SimpleNamespace(**{NZ: int(os.environ.get(NZ, 1))}),
        "get_ascend_config": lambda: SimpleNamespace(**ADDITIONAL_CONFIG),
    }
    exec(compile(ast.Module([*nodes], []), CLASS, "exec"), space)
    return {node.name: space[node.name] for node in nodes}


def cut_methods(source: str) -> list[ast.FunctionDef]:
    """The methods of NPUWorker in `CALLED`, and those of its own that they call."""
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    (worker,) = [node for node in classes if node.name == CLASS]
    methods = {node.name: node for node in worker.body if isinstance(node, ast.FunctionDef)}
    wanted, found = list(CALLED), dict[str, ast.FunctionDef]()
    while wanted:
        name = wanted.pop()
        if name not in found:
            found[name] = methods[name]
            wanted += [own for own in _own_names(methods[name]) if own in methods]
    return list(found.values())


def _own_names(method: ast.FunctionDef) -> list[str]:
    """What it looks up in `self`."""
    attributes = [node for node in ast.walk(method) if isinstance(node, ast.Attribute)]
    return [node.attr for node in attributes if getattr(node.value, "id", "") == "self"]


class TorchWithNpu(ModuleType):
    npu = SimpleNamespace(synchronize=lambda: None)

    def __getattr__(self, name: str) -> Any:
        import torch

        return getattr(torch, name)
