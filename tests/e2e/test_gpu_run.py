"""The house on one real GPU. Both pools share it, so weights go by relay (docs/architecture.md, Devices)."""

import pytest

from tests.e2e import runs
from tests.tiny_model import SHAPE, write_tiny_model

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.usefixtures("gpu")]

ROLLOUT = {"device": "cuda", "devices": [0], "max_concurrency": 16, "memory_fraction": 0.2}
SHARED = {
    "trainer": {"device": "cuda", "devices": [0], "learning_rate": 1e-3},
    "weight_sync": {"transport": "relay"},
    # Some answers of a random model hold such a digit.
    "reward": {"rules": {"regular_expression": {"options": {"pattern": "[0-4]"}}}, "workers": 1},
}
MOST_LOGPROB_DIFF = {"float32": 0.005, "bfloat16": 0.1}
"""Between the engine and the trainer with equal weights, of a token, at the mean."""


@pytest.fixture(scope="session")
def gpu_model(tmp_path_factory):
    """Heads of 64, which every attention kernel takes."""
    shape = {**SHAPE, "hidden_size": 256, "intermediate_size": 512}
    return write_tiny_model(tmp_path_factory.mktemp("models") / "gpu", "qwen2", shape=shape)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_a_run_trains_and_publishes(write_run, tmp_path, gpu_model, engine, dtype):
    path = write_run(
        run={"steps": 4, "groups_per_step": 8},
        model={"path": str(gpu_model), "dtype": dtype},
        rollout={**ROLLOUT, "engine": engine},
        **SHARED,
    )
    folder, _ = runs.finished(path, parent=tmp_path)
    rows = runs.rows(folder, "step")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    # Groups whose answers are all rewarded alike are not computed.
    computed = [row for row in rows if row["trainer/computed/tokens"]]
    differences = [row["trainer/computed/logprob_diff/mean"] for row in computed]
    assert differences
    assert max(differences) < MOST_LOGPROB_DIFF[dtype], differences
    assert all(row["weight_sync/bytes/relay"] > 0 for row in rows)


def test_a_killed_run_reaches_the_recorded_weights(write_run, tmp_path, gpu_model):
    """A deterministic run stops where a step that is trained again gives other weights."""
    path = write_run(
        run={"steps": 6, "checkpoint_every": 4, "deterministic": True},
        model={"path": str(gpu_model), "dtype": "bfloat16"},
        rollout={**ROLLOUT, "engine": "transformers"},
        **SHARED,
    )
    run = runs.train_killed_and_resumed(path, tmp_path / "runs", tmp_path)
    assert runs.rows(run, "step")[-1]["step"] == 6
