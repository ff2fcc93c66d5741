"""The trainer sends tokens through the experts that vLLM chose, also when the run is trained again."""

import pytest

from tests.e2e import runs
from tests.tiny_model import EXPERTS, SHAPE, write_tiny_model

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def test_all_choices_of_vllm_are_replayed_and_stay_in_the_payloads(write_run, tmp_path):
    model = write_tiny_model(tmp_path / "model", "qwen3_moe", shape=SHAPE | EXPERTS["qwen3_moe"])
    path = write_run(
        run={"max_lag": 1, "keep_payloads": "all", "deterministic": True},
        model={"path": str(model)},
        rollout={"engine": "vllm", "kv_cache_gib": 0.05},
        trainer={"router": {"replay": True}, "learning_rate": 1e-6},
        # The rewards of a random model are all equal: all tokens are computed for this alone.
        algorithm={"kl": {"coefficient": 0.01}},
        validation={"every": 100},
    )
    code, output = runs.train(path, run_folder_parent=tmp_path)
    assert code == 0, output
    folder = runs.only_run(tmp_path / "runs")
    for row in runs.rows(folder, "step"):
        assert row["trainer/experts/replay/share"] == 1.0
        # Other roundings. Choices of other tokens or layers would be half wrong.
        assert row["trainer/experts/replay/differs/share"] < 0.01
    process = runs.start("replay", folder, run_folder_parent=tmp_path)
    output = runs.finish(process)
    assert process.returncode == 0, output
    assert output.count("  same  ") == 3
