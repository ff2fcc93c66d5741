"""The stub torch_npu: in processes that install it, and in no other."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
USE = """
from tests.contract_run import torch_npu_stub
torch_npu_stub.install()
import acl, torch, torch_npu, triton
import torch_npu.contrib.transfer_to_npu
from triton.runtime.jit import JITFunction
class Kernel(JITFunction): ...
print(torch.npu.device_count(), torch.device("npu").type, torch_npu.anything().at_all)
"""


def run(code: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_is_installed_answers_for_one_device() -> None:
    assert run(USE).startswith("1 npu <MagicMock")


def test_nobody_imports_it_by_accident() -> None:
    if "torch_npu" in packages_distributions():
        pytest.skip("this machine has the real torch_npu")
    find = "import importlib.util as u, tests.contract_run.torch_npu_stub; print(u.find_spec('torch_npu'))"
    assert run(find) == "None\n"


def test_a_part_reaches_each_process_once_its_module_is_imported(tmp_path: Path) -> None:
    (tmp_path / "watched.py").write_text("value = 1")
    (tmp_path / "act.py").write_text("def change(module): module.value += 1")
    variables = {
        "PYTHONPATH": os.pathsep.join([str(HERE / "start"), str(tmp_path)]),
        "CONTRACT_RUN_AFTER": "watched",
        "CONTRACT_RUN": "act:change",
    }
    child = "import sys; print('act' in sys.modules); import watched; print(watched.value)"
    assert run(child, **variables) == "False\n2\n"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    assert run(parent, **variables) == "False\n2\n"
