"""What stands between megatron-core and the CPU: the whole list, so that nothing is added unseen."""

from __future__ import annotations

import json
import os
import subprocess
import sys

LOOK = """
import json, sys
import torch
from services.trainer.megatron import cpu
cpu.let_megatron_run_on_cpu()
core = {n: m for n, m in sys.modules.items() if n.startswith("megatron.core")}
ours = lambda value: getattr(value, "__module__", "").startswith("services.")
proxies = {id(vars(m)["torch"]) for m in core.values() if isinstance(vars(m).get("torch"), cpu._TorchProxy)}
[proxy] = [m.torch for m in core.values() if isinstance(vars(m).get("torch"), cpu._TorchProxy)][:1]
print(json.dumps({
    "proxies": len(proxies),
    "others see torch": sys.modules["torch"] is torch and not isinstance(torch, cpu._TorchProxy),
    "torch": sorted(name for name in vars(proxy) if not name.startswith("_")),
    "torch.cuda": sorted(name for name in vars(type(proxy.cuda)) if not name.startswith("_")),
    "names": sorted({key for m in core.values() for key, value in vars(m).items() if ours(value)}),
    "tensor methods": sorted(n for n in dir(torch.Tensor) if ours(vars(torch.Tensor).get(n))),
    "torch itself": sorted(n for n, value in vars(torch).items() if ours(value)),
    "loaded with": sorted(cpu.MODULES),
}))
"""


def test_the_whole_list_of_what_is_patched() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LOOK],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found = json.loads(run.stdout.splitlines()[-1])
    assert found == {
        "proxies": 1,
        "others see torch": True,
        "torch": [
            *("arange", "cuda", "empty", "empty_like", "full", "ones", "tensor", "zeros"),
            "zeros_like",
        ],
        "torch.cuda": [
            *("Stream", "current_device", "current_stream", "default_stream", "empty_cache"),
            *("get_rng_state", "manual_seed", "set_device", "stream", "synchronize"),
        ],
        # jit_fuser is torch.compile, which would load its compilers for fusions that are off.
        "names": [
            # Gloo gathers and reduces equal parts only.
            *("_gather_along_first_dim", "_get_cuda_rng_state", "_reduce_scatter_along_first_dim"),
            *("_set_cuda_rng_state", "jit_fuser", "maybe_move_tensor_to_cpu", "torch"),
        ],
        "tensor methods": ["cuda", "type"],
        "torch itself": [],
        "loaded with": [
            *("distributed", "models.gpt", "models.gpt.gpt_layer_specs", "optimizer"),
            *("parallel_state", "pipeline_parallel", "tensor_parallel"),
            "transformer.moe.moe_layer",
        ],
    }
