"""What is read of a machine. The driver's library is a stand-in, compiled here."""

import os
import shutil
import subprocess
import sys

import pytest

from trimaran.host.machine import NVML, read_machine

NVML_C = """
int nvmlInit_v2(void) { return %d; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 3; return %d; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) { *device = (void *)(index + 1UL); return 0; }
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory) {
  memory[0] = 80; memory[1] = 10 * (unsigned long long)device; memory[2] = 80 - memory[1]; return 0; }
"""
ASK = """
import sys, os
from trimaran.host.machine import read_gpu_memory, read_gpus, read_machine
machine = read_machine(os.environ)
free = ",".join(str(gpu.free) for gpu in read_gpus(machine))
print(machine.num_gpus, "torch" in sys.modules, read_gpu_memory(machine), free)
"""


def test_npus_are_counted_by_their_nodes(tmp_path):
    for name in ("davinci0", "davinci1", "davinci12", "davinci_manager"):
        (tmp_path / name).touch()
    assert read_machine({}, str(tmp_path / "davinci[0-9]*")).num_npus == 3


def test_packages_are_found_without_being_imported(tmp_path, monkeypatch):
    (tmp_path / "mindspeed").mkdir()
    (tmp_path / "mindspeed" / "__init__.py").write_text("raise ImportError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert "mindspeed" in read_machine({}).packages


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
@pytest.mark.parametrize(
    ("cuda", "init", "count", "expected"),
    [("'13.0'", 0, 0, 3), ("'13.0'", 9, 0, 0), ("'13.0'", 0, 9, 0), (None, 0, 0, 0)],
)
def test_gpus_count_where_torch_has_cuda_and_torch_is_not_imported(
    tmp_path, cuda, init, count, expected
):
    (tmp_path / "nvml.c").write_text(NVML_C % (init, count))
    library = ["cc", "-shared", "-fPIC", "-o", str(tmp_path / NVML), str(tmp_path / "nvml.c")]
    subprocess.run(library, check=True, timeout=60)
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('imported')")
    (tmp_path / "torch" / "version.py").write_text(f"cuda = {cuda}\n")
    path = {"PYTHONPATH": str(tmp_path), "LD_LIBRARY_PATH": str(tmp_path)}
    asked = subprocess.run(
        [sys.executable, "-c", ASK],
        env=os.environ | path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    memory = ["80", "10,20,30"] if expected else ["None"]
    assert asked.stdout.split() == [str(expected), "False", *memory], asked.stderr
