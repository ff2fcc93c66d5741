"""The example runs of verl, EasyR1, MindSpeed-RL and MindSpeed-MM, imported and run: three steps of a tiny model."""

import json
from math import isfinite

import pytest
import yaml

from tests.e2e import runs
from tests.guides.examples import EXAMPLES, FILES, write_models

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

OURS = {False: ("rollout.engine=transformers",), True: ("rollout.kv_cache_gib=0.25",)}
"""Behind `trimaran train`. vLLM is the engine that takes images, and the slower one to start."""
FUNCTIONS = {
    "verl": "reward_of_verl.py",
    "easyr1": "reward_of_easyr1.py",
    "mindspeed-rl": "reward_of_verl.py",
}
"""A model without any skill gets 0 of each published rule. This one beside it distinguishes its answers."""
UPDATES = {"verl": 4, "easyr1": 4, "mindspeed-rl": 1}
"""Of a step, as published."""
TEMPLATES = {"verl-gsm8k": "output the final answer after"}
"""Words around the question, where they are not think_boxed's."""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return write_models(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_of_theirs_trains_here(name, tmp_path, models):
    example = EXAMPLES[name]
    example.prepare(tmp_path)
    path = example.bring_in(tmp_path, models[example.has_images], example.on_a_laptop)
    function = f"{FILES / FUNCTIONS[example.system]}:compute_score"
    words = [
        *OURS[example.has_images],
        f"reward.rules.letters={{weight: 1.0, function: {function}}}",
        "metrics.also=[verl, mindspeed-rl]",
        f"run.folder={tmp_path / 'runs'}",
    ]
    folder, _ = runs.finished(path, *words, "--allow", function, parent=tmp_path)
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["steps"], summary["skipped"]) == (3, 0)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["algorithm"]["updates_per_batch"] == UPDATES[example.system]
    assert len(config["reward"]["rules"]) == 2
    for row in runs.rows(folder, "step"):
        assert row["actor/grad_norm"] > 0
        assert all(f"{rule}_rewards/mean" in row for rule in config["reward"]["rules"])
        assert row["e2e_tps"] == row["perf/throughput"] > 0
        # MindSpeed-RL's formula, of its own names: one die trains and one generates.
        lengths = row["response_length/mean"] + row["prompt_length/mean"]
        completions = config["run"]["groups_per_step"] * config["rollout"]["group_size"]
        assert row["e2e_tps"] == pytest.approx(lengths * completions / 2 / row["timing/all"])
        assert all(isfinite(value) for value in row.values() if isinstance(value, float))
    if config["data"]["validation"]:
        asked = (folder / "samples/step-00003.jsonl").read_text()
        assert TEMPLATES.get(name, "MUST BE put in") in asked
