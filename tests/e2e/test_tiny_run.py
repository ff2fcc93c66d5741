"""The whole house on a tiny random model: five services, real engines, real transport."""

import json
import signal

import pytest
import yaml

from commands.cli.manage.folder_client import FolderClient
from tests.e2e import runs
from tests.manager.viewing.folders import contents
from trimaran.run.runs import EventKind, RunState

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def test_a_run_leaves_all_that_it_promises_and_nothing_alive(write_run, tmp_path):
    path = write_run(run={"max_lag": 1})
    also = "metrics.also=[verl, mindspeed-rl]"
    code, output = runs.train(path, "run.seed=7", also, "--view", run_folder_parent=tmp_path)
    assert code == 0, output
    folder = runs.only_run(tmp_path / "runs")
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["steps"], summary["seed"]) == (3, 7)
    assert {"heldout_before", "heldout_after", "seconds", "samples_per_second"} <= set(summary)
    assert [row["step"] for row in runs.rows(folder, "step")] == [1, 2, 3]
    for row in runs.rows(folder, "step"):
        assert row["timing/all"] >= row["timing/update"] + row["timing/resharding_to_infer"]
        assert row["e2e_tps"] == row["controller/step/tokens_per_second_per_device"]
        assert row["perf/throughput"] == row["e2e_tps"]
        assert row["response_length/max"] >= row["response_length/mean"]
        assert 0 <= row["timing/non_overlap_rule_reward"] <= row["timing/all"]
    assert [row["step"] for row in runs.rows(folder, "validation")] == [0, 2, 3]
    assert yaml.safe_load((folder / "config.yaml").read_text())["run"]["max_lag"] == 1
    assert list((folder / "tensorboard").iterdir())
    assert len(list((folder / "samples").iterdir())) == 3
    assert (folder / "checkpoints" / "step-00003").is_dir()
    assert_loads_in_transformers(folder / "model")
    assert str(folder) in output
    assert f"{folder.parent}: read only at http://127.0.0.1:" in output
    assert f"trimaran view {folder} shows them again" in output
    assert runs.survivors(tmp_path) == []
    assert_tells_all_without_a_manager(folder)
    assert_validates_alike(path, folder, tmp_path)


def assert_tells_all_without_a_manager(folder):
    """And none of its files changes meanwhile."""
    before = contents(folder)
    with FolderClient(folder) as client:
        run = client.get_run(folder.name)
        assert (run.state, run.step) == (RunState.SUCCEEDED, 3)
        kinds = client.loop.run(kinds_of(client.client.watch_run(folder.name)))
        assert kinds.count(EventKind.STEP) == 3 and kinds[-1] is EventKind.FINISHED
        assert client.list_checkpoints(folder.name)[-1].kept
        assert client.get_samples(folder.name).validation_steps == (0, 2, 3)
        assert client.get_ledger(folder.name, 0).lines
        assert client.get_ledger(folder.name).sound
    assert contents(folder) == before


async def kinds_of(events):
    return [event.kind async for event in events]


def assert_validates_alike(path, first, tmp_path):
    """A run that only validates the checkpoint of another finds what that one found, and trains nothing."""
    settings = (
        "run.seed=7",
        "metrics.also=[verl]",
        "validation.only=true",
        f"trainer.load={first}",
    )
    second = f"run.folder={tmp_path / 'second'}"
    code, output = runs.train(path, *settings, second, run_folder_parent=tmp_path)
    assert code == 0, output
    folder = runs.only_run(tmp_path / "second")
    *_, last = runs.rows(first, "validation")
    [row] = runs.rows(folder, "validation")
    for key in ("validation/greedy_reward/mean", "validation/greedy_correct/share"):
        assert row[key] == last[key]
    n = max(int(key.rpartition("/")[2]) for key in row if key.startswith("validation/pass_at/"))
    assert row[f"val-core/default/acc/best@{n}/mean"] == row[f"validation/pass_at/{n}"]
    assert f"validation/majority_at/{n}" in row
    assert runs.rows(folder, "step") == []
    assert not (folder / "model").exists()
    assert not list(folder.glob("checkpoints/step-*"))
    assert json.loads((folder / "summary.json").read_text())["steps"] == 0
    assert runs.survivors(tmp_path) == []


def assert_loads_in_transformers(folder):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder)
    tokens = AutoTokenizer.from_pretrained(folder)("1 + 2", return_tensors="pt")
    assert model(**tokens).logits.isfinite().all()


def test_a_rank_group_trains_and_publishes_and_a_prompt_too_long_is_skipped(write_run, tmp_path):
    ranks = {"pipeline_parallel": 2, "data_parallel": 2}
    path = write_run(trainer=ranks, run={"steps": 2, "groups_per_step": 6})
    with (tmp_path / "train.jsonl").open("a") as file:
        file.write(json.dumps({"prompt": "1 " * 200, "answer": "1"}) + "\n")
    code, output = runs.train(path, "data.shuffle=false", run_folder_parent=tmp_path)
    assert code == 0, output
    folder = runs.only_run(tmp_path / "runs")
    assert [row["step"] for row in runs.rows(folder, "step")] == [1, 2]
    assert json.loads((folder / "summary.json").read_text())["skipped"] == 1
    assert "too long" in output or "longer" in output
    assert runs.survivors(tmp_path) == []


def test_ctrl_c_ends_all_of_it(write_run, tmp_path):
    process = runs.start("train", write_run(run={"steps": 500}), run_folder_parent=tmp_path)
    folder = tmp_path / "runs"
    runs.wait_for(
        lambda: (run := runs.find_run(folder)) and runs.rows(run, "step"), process, "a step"
    )
    process.send_signal(signal.SIGINT)
    output = runs.finish(process)
    assert "Traceback" not in output
    assert runs.survivors(tmp_path) == []


def test_a_killed_launcher_leaves_no_orphan_and_its_run_resumes_bitwise(write_run, tmp_path):
    steps = {"steps": 5, "deterministic": True}
    path = write_run(run=steps | {"folder": str(tmp_path / "whole")})
    code, output = runs.train(path, run_folder_parent=tmp_path)
    assert code == 0, output

    path = write_run(run=steps | {"folder": str(tmp_path / "broken")})
    broken = runs.train_killed_and_resumed(path, tmp_path / "broken", tmp_path)
    whole = runs.only_run(tmp_path / "whole")
    weights = "model/model.safetensors"
    assert (whole / weights).read_bytes() == (broken / weights).read_bytes()
    rewards = [
        {row["step"]: row["reward/completion/mean"] for row in runs.rows(run, "step")}
        for run in (whole, broken)
    ]
    assert rewards[0] == rewards[1]


def test_a_run_goes_on_in_another_layout_and_another_run_with_its_weights(write_run, tmp_path):
    path = write_run(run={"steps": 6, "checkpoint_every": 2, "keep_best": 1})
    process = runs.start("train", path, run_folder_parent=tmp_path)
    folder = tmp_path / "runs"
    runs.wait_for(
        lambda: (run := runs.find_run(folder)) and len(runs.rows(run, "step")) >= 3,
        process,
        "three steps",
    )
    process.send_signal(signal.SIGINT)
    runs.finish(process)
    resumed = ("--resume", runs.only_run(folder), "trainer.pipeline_parallel=2")
    code, output = runs.train(*resumed, run_folder_parent=tmp_path)
    assert code == 0, output
    first = runs.only_run(folder)
    assert sorted({row["step"] for row in runs.rows(first, "step")}) == [1, 2, 3, 4, 5, 6]
    assert len(list((first / "checkpoints/step-00006").glob("shard-*"))) == 2
    path = write_run(run={"folder": str(tmp_path / "second")}, trainer={"load": str(first)})
    code, output = runs.train(path, run_folder_parent=tmp_path)
    assert code == 0, output
    begun = runs.only_run(tmp_path / "second")
    greedy = "validation/greedy_reward/mean"
    [last] = [row[greedy] for row in runs.rows(first, "validation") if row["step"] == 6]
    [begin] = [row[greedy] for row in runs.rows(begun, "validation") if row["step"] == 0]
    assert begin == last
    assert runs.survivors(tmp_path) == []


def test_a_service_that_cannot_start_shows_its_last_lines(write_run, tmp_path, tiny_model):
    broken = tmp_path / "broken-model"
    broken.mkdir()
    for file in tiny_model.iterdir():
        if file.suffix != ".safetensors":
            (broken / file.name).write_bytes(file.read_bytes())
    (broken / "model.safetensors").write_bytes(b"not weights")
    path = write_run(model={"path": str(broken), "dtype": "float32"})
    code, output = runs.train(path, run_folder_parent=tmp_path)
    assert code in (1, 2)
    assert "trainer-0" in output or "rollout-0" in output
    assert runs.survivors(tmp_path) == []
