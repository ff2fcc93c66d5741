"""`trimaran replay` trains a real run again, from its ledger alone."""

import json

import pytest

from tests.e2e import runs

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def test_an_asynchronous_run_is_extended_and_trained_again_with_the_rates_that_it_had(
    write_run, tmp_path
):
    def trimaran(*words):
        return runs.trimaran(*words, run_folder_parent=tmp_path)

    length = {"steps": None, "epochs": 1, "groups_per_step": 5}
    kept = {"keep_payloads": "all", "keep_checkpoints": 2}
    path = write_run(
        run={**length, **kept, "max_lag": 1, "deterministic": True},
        trainer={"schedule": "linear"},
    )
    folder, output = runs.finished(path, parent=tmp_path)
    assert "step 2/2" in output, "10 prompts are two steps of 5"

    words = ("--resume", folder, "run.steps=4", "validation.every=3")
    _, output = runs.finished(*words, parent=tmp_path)
    reported = (
        "from step 3 on: run.steps 4 (was 2), validation.every 3 (was 2); trainer.schedule linear"
    )
    assert reported in output
    rates = [row["trainer/learning_rate"] for row in runs.rows(folder, "step")]
    assert rates == pytest.approx([0.5e-3, 0.0, 0.25e-3, 0.0])
    assert [row["step"] for row in runs.rows(folder, "validation")] == [0, 2, 3, 4]

    output = runs.replay(folder, tmp_path)
    assert output.count("  same  ") == 4
    assert "the same: 4 steps" in output

    code, output = trimaran("replay", folder, "--from", "2")
    assert code == 0, output
    assert "the same: 2 steps" in output

    code, output = trimaran("ledger", "verify", folder, "--json")
    assert code == 0, output
    found = json.loads(output)
    assert (found["committed"], found["payloads"], found["faults"]) == (20, 20, [])

    # Other arithmetic is noticed at the first step.
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("weight_decay: 0.0", "weight_decay: 0.5"))
    code, output = trimaran("replay", folder)
    assert code == 1, output
    assert "DIFFERENT: step 1 has root" in output

    payload = next(path for path in (folder / "payloads").iterdir())
    payload.unlink()
    code, output = trimaran("replay", folder)
    assert code == 2, output
    assert "no longer kept" in output
    code, output = trimaran("ledger", "verify", folder)
    assert code == 1, output
    assert "payload is missing" in output
