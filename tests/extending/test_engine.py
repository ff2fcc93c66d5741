"""The recipe of an engine, behind the real server in a process of its own."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.extending.recipes import Recipe
from trimaran.model.folder import read_model_folder

torch = pytest.importorskip("torch", reason="torch is not installed; a replica needs it")
pytest.importorskip("transformers", reason="transformers is not installed; its tokenizer is used")

pytestmark = pytest.mark.e2e


async def test_the_engine_generates_under_each_version_and_reads_it_back(
    follow: Callable[[str], Recipe], tmp_path: Path
) -> None:
    from tests.rollout import replicas
    from tests.tiny_model import write_tiny_model
    from weights.version.manifest import list_digests

    name = follow("An inference engine").run["rollout"]["engine"]
    model = write_tiny_model(tmp_path / "model")
    vocab_size = read_model_folder(model).vocab_size
    replica = await asyncio.to_thread(replicas.start_replica, name, model, tmp_path)

    try:
        async with replica.client() as client:
            for step in (1, 2):
                version = await replica.publish(client, {"a": torch.full((8, 2), float(step))})
                group = await replicas.generate(client, replicas.sampling(2, 5, seed=step))
                for completion in group.completions_G:
                    assert len(completion.token_ids_T) == 5
                    assert max(completion.token_ids_T) < vocab_size
                    assert sum(completion.logprobs_S) == pytest.approx(
                        -5 * math.log(vocab_size - 1), rel=1e-6
                    )
                    assert [segment.version for segment in completion.segments] == [version]
                digests = await client.read_back(version, ((0, 1),), replicas.TIMEOUT)
                assert digests == list_digests(replica.manifest)[:1]
    finally:
        replicas.stop(replica)
