"""Programs that look into a real vLLM engine on the host, each in a process of its own."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import torch

from services.rollout.engine import Chunk, GenerationRequest
from services.rollout.vllm import engine as vllm_engine
from tests.configs import configure
from tests.contract.sources import Sources
from trimaran.host.device import pick
from trimaran.host.shared_memory import note_mapped, note_of, remove_left
from trimaran.types import Manifest
from weights.version.manifest import list_blocks, list_digests

ARCHIVES = Path(__file__).parents[2] / ".cache" / "contract"
SECONDS = 300.0


def run_program(name: str, *arguments: Any) -> dict[str, Any]:
    """What `python -m tests.rollout.NAME` prints."""
    process = subprocess.run(
        [sys.executable, "-m", f"tests.rollout.{name}", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )
    assert process.returncode == 0, process.stderr[-4000:]
    return json.loads(process.stdout.splitlines()[-1])


def print_checks(
    checks: Any, folder: Path, dtype: str, arguments: dict[str, Any], **sections: Any
) -> None:
    """As JSON what `checks(engine, folder).run()` finds on an engine that is started and closed for it.
    `arguments`: vLLM gets these too."""
    plain = vllm_engine.engine_arguments
    vllm_engine.engine_arguments = lambda *given: plain(*given) | arguments
    rollout = {"device": "cpu", "max_tokens": 32, "max_prompt_tokens": 16, "kv_cache_gib": 0.05}
    sections["rollout"] = rollout | sections.get("rollout", {})
    config = configure(model={"path": str(folder), "dtype": dtype}, **sections)
    engine = vllm_engine.VllmEngine(config, pick("cpu"))
    print(json.dumps(asyncio.run(_check(engine, folder, checks))))


async def _check(engine: Any, folder: Path, checks: Any) -> dict[str, Any]:
    note = note_of(folder, "rollout-0")
    await engine.start()
    note_mapped(note)
    try:
        return await checks(engine, folder).run()
    finally:
        await engine.close()
        remove_left(note)  # as a replica does


def has_packed_copy(head: Any) -> bool:
    """Of an output layer: whether it computes the same after its parameter is zeroed, for a moment.

    vLLM packs on the host where the CPU has AVX-512 or AMX; elsewhere its kernels read the parameter itself.
    """
    weight = head.weight
    with torch.no_grad():
        held = weight.clone()
        weight.zero_()
        found = bool(head.cpu_linear(torch.ones_like(held[:1]), weight, None).any())
        weight.copy_(held)
    return found


def matrix_of(layer: Any, dtype: torch.dtype) -> torch.Tensor:
    """A copy of what the layer multiplies by, [in, out]: its products with the identity, which are exact."""
    size = getattr(layer, "input_size_per_partition", None) or layer.embedding_dim
    with torch.no_grad():
        return layer.cpu_linear(torch.eye(size, dtype=dtype), layer.weight, None).clone()


async def find_wrong(engine: Any, manifest: Manifest) -> list[Any]:
    """[tensor, index] of the blocks whose digest is not the version's."""
    found = await engine.read_back(manifest, ((0, manifest.num_blocks),))
    digests = list_digests(manifest)
    return [
        [block.tensor.name, block.index]
        for block in list_blocks(manifest.tensors)
        if found[block.number] != digests[block.number]
    ]


def loads_by_vllm(engine: Any) -> list[Any]:
    """Grows with each load by vLLM's own loader."""
    loads: list[Any] = []
    update = engine._workers._update

    async def counted(*arguments: Any) -> None:
        loads.append(arguments)
        await update(*arguments)

    engine._workers._update = counted
    return loads


async def chunks_of(engine: Any, request: GenerationRequest) -> AsyncIterator[Chunk]:
    async with aclosing(engine.generate(request)) as events:
        async for event in events:
            if isinstance(event, Chunk):
                yield event


def ascend_module(version: str, module: str) -> ast.Module:
    """Of vLLM-Ascend as published; skips where `make contract` has not fetched it."""
    archives = sorted(ARCHIVES.glob(f"*vllm_ascend-{version}[-.]*"))
    if not archives:
        pytest.skip(f"{ARCHIVES} has no vllm-ascend {version}; `make contract` fetches it")
    return Sources.read(archives).tree(module)
