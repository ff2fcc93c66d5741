"""The guides' performance tables as runs: valid, as large as published, and planned. Nothing has run them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from benchmarks.npu import __main__ as bench
from benchmarks.npu.figures import LONGEST, WARM_UP, figures
from benchmarks.npu.published import GUIDES, ROWS
from benchmarks.npu.run_file import STEPS, num_dies, run_config
from trimaran.config import config_to_tree
from trimaran.telemetry.other_names import OtherNames, facts_of


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_a_run_as_large_as_published(name: str) -> None:
    row = ROWS[name]
    config = run_config(name, row, Path("model"), Path("data"))
    assert (config.run.groups_per_step, config.rollout.group_size) == (row.prompts, row.answers)
    assert (config.rollout.max_prompt_tokens, config.rollout.max_tokens) == (
        row.prompt_tokens,
        row.answer_tokens,
    )
    assert row.prompts % config.algorithm.updates_per_batch == 0
    # Separate pools keep all of the optimizer on the trainer's half: at most twice the dies.
    assert row.dies <= num_dies(config) <= 2 * row.dies
    assert config.data.has_images == ("VL" in row.model) == (row.by == "verl")
    assert row.by in GUIDES


def test_the_table_has_every_row() -> None:
    text = "\n".join(bench.table())
    assert "unrun" in text
    assert all(name in text for name in ROWS)


def test_every_row_is_planned_as_the_table_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["--plan", "--folder", str(tmp_path), "--models", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.count(": fits") == sum(not row.refused for row in ROWS.values()) == 11
    tree = yaml.safe_load((tmp_path / "qwen3vl-8b-a3" / "run.yaml").read_text())
    assert tree["rollout"]["max_tokens"] == 2048


def test_a_row_that_fits_by_no_means_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "DIE_GIB", 16)
    options = ["--folder", str(tmp_path), "--models", str(tmp_path)]
    assert bench.main(["qwen25-7b-a3", "--plan", *options]) == 1
    assert "its device has 16.00 GiB" in capsys.readouterr().err


def test_a_run_needs_its_model_and_its_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--folder", str(tmp_path), "--models", str(tmp_path), "--data", str(tmp_path)]
    assert bench.main(["qwen3vl-8b-a2", *options]) == 2
    (tmp_path / "Qwen3-VL-8B-Instruct").mkdir()
    assert bench.main(["qwen3vl-8b-a2", *options]) == 2
    err = capsys.readouterr().err
    assert "Qwen3-VL-8B-Instruct is not here" in err
    assert "trimaran data prepare geo3k" in err


def write_finished(folder: Path, name: str, step: dict[str, float], steps: int) -> Path:
    """A run folder with as many equal steps, by a configuration of the table."""
    config = run_config(name, ROWS[name], Path("model"), Path("data"))
    step = {**step, **OtherNames(("verl", "mindspeed-rl"), facts_of(config)).of(step)}
    rows = [{"kind": "step", "step": number, **step} for number in range(1, steps + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "config.yaml").write_text(yaml.safe_dump(config_to_tree(config)))
    return folder


def step_of(
    response: float, prompt: float, completions: int, dies: int, seconds: float
) -> dict[str, float]:
    tokens = (response + prompt) * completions / seconds
    return {
        "controller/step/seconds": seconds,
        "controller/step/tokens_per_second": tokens,
        "controller/step/tokens_per_second_per_device": tokens / dies,
        "controller/phase/generating/seconds": seconds / 2,
        "trainer/part/gradient/seconds": seconds / 4,
        "rollout/completion/length/mean": response,
        "rollout/prompt/length/mean": prompt,
        "rollout/completion/length/max": 2 * response,
        "rollout/prompt/length/max": prompt,
    }


def test_the_report_has_every_formula_beside_the_published_figure(tmp_path: Path) -> None:
    step = step_of(response=1000, prompt=200, completions=256, dies=16, seconds=60)
    folder = write_finished(tmp_path, "qwen25-7b-a3", step, steps=STEPS)
    lines = list(bench.report("qwen25-7b-a3", folder))
    assert lines[0] == "qwen25-7b-a3 on 16 dies (trainer 8, replicas 8)"
    values = {line.rsplit(maxsplit=2)[0].strip(): line.split()[-2:] for line in lines[3:-1]}
    mean = (1000 + 200) * 256 / 16 / 60
    for formula in ("ours", "verl", "mindspeed-rl"):
        assert values[formula] == [f"{mean:.1f}", f"{2 * mean:.1f}"]
    assert values["mindspeed-rl vllm_tps"][0] == f"{2 * mean:.1f}"
    assert values[LONGEST][0] == f"{(2000 + 200) * 256 / 16 / 60:.1f}"
    assert values["published, by mindspeed-rl's"] == ["220", "440"]


def test_steps_of_the_warm_up_do_not_count() -> None:
    step = step_of(10, 10, 8, 2, 1.0)
    assert figures([step] * WARM_UP, 8, 2) == {}
