"""Whole runs of families with layers of their own, on vLLM; in bfloat16 the routers' biases are in float32."""

import pytest

from tests.e2e import runs
from tests.tiny_model import EXPERTS, SHAPE, write_tiny_model

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


WINDOW = {"sliding_window": 8}
SHAPES = {
    **EXPERTS,
    "mistral": WINDOW,
    # Of two layers the second attends to all.
    "gemma3_text": WINDOW
    | {"sliding_window_pattern": 2, "head_dim": 32, "query_pre_attn_scalar": 24},
}


@pytest.mark.parametrize("family", ["deepseek_v3", "glm4_moe", "mistral", "gemma3_text"])
def test_a_run_on_vllm_computes_as_the_trainer_does_and_is_proven_in_full(
    family, write_run, tmp_path
):
    shape, has_experts = SHAPE | SHAPES[family], family in EXPERTS
    # In bfloat16 vLLM 0.30 for processors does not get through Gemma's attention everywhere.
    dtype = "float32" if family == "gemma3_text" else "bfloat16"
    model = write_tiny_model(tmp_path / "model", family, False, dtype, shape=shape)
    trainer = {"expert_parallel": 2, "router": {"replay": True}} if has_experts else {}
    path = write_run(
        run={"max_lag": 0, "proof": "loaded"},
        model={"path": str(model), "dtype": dtype},
        rollout={"engine": "vllm", "kv_cache_gib": 0.05},
        trainer={"data_parallel": 2, **trainer},
        # The rewards of a random model are all equal: all tokens are computed for this alone.
        algorithm={"kl": {"coefficient": 0.01}},
        validation={"every": 100},
    )
    code, output = runs.train(path, run_folder_parent=tmp_path)
    assert code == 0, output
    rows = runs.rows(runs.only_run(tmp_path / "runs"), "step")
    assert len(rows) == 3
    for row in rows:
        assert row["weight_sync/proof/tokens/loaded"] > 0
        assert row.get("trainer/experts/replay/differs/share", 0) < 0.05
        assert row["trainer/computed/logprob_diff/mean"] < 0.01
