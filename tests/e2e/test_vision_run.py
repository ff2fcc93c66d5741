"""A vision-language model through the whole house: dataset, vLLM, reward, trainer, weight sync."""

import json

import pytest

from tests.calling_model import ADD, NUMBERS, calls_of, give_texts
from tests.e2e import colours, runs
from tests.tiny_vision import CHAT_TEMPLATE

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_a_policy_learns_to_look_at_the_image(tmp_path, family):
    path = colours.write_task(tmp_path, family, weight_sync={"sample_share": 1.0})
    folder, _ = runs.finished(path, parent=tmp_path)
    assert json.loads((folder / "summary.json").read_text())["skipped"] == 0
    steps = runs.rows(folder, "step")
    assert len(steps) == colours.STEPS
    for row in steps:
        # Of the same pixels, in two programs. A step all of whose groups have equal rewards computes none.
        assert row.get("trainer/computed/logprob_diff/mean", 0.0) < 1e-4
    # Steps are short, so not every version is live for long enough to be read back. Those that are
    # were right, the tower's tensors among them.
    assert max(row["weight_sync/proof/share"] for row in steps) == 1
    before, _ = colours.accuracies(folder, 0)
    after, exchanged = colours.accuracies(folder, colours.STEPS)
    assert before <= 0.3
    assert after >= 0.9
    assert exchanged <= 0.4


def test_a_model_with_experts_goes_the_whole_way(tmp_path):
    """Learning is shown by the others: this one takes three steps."""
    sections = {"run": {"steps": 3}, "validation": {"every": 3}}
    path = colours.write_task(tmp_path, "qwen3_vl_moe", **sections)
    folder, _ = runs.finished(path, parent=tmp_path)
    assert json.loads((folder / "summary.json").read_text())["skipped"] == 0
    steps = runs.rows(folder, "step")
    assert len(steps) == 3
    for row in steps:
        assert row.get("trainer/computed/logprob_diff/mean", 0.0) < 1e-4
        assert row.get("trainer/experts/busiest/mean", 1.0) >= 1
    assert any("trainer/experts/busiest/mean" in row for row in steps)
    assert max(row["trainer/grad_norm"] for row in steps) > 0
    assert (folder / "model" / "model.safetensors").stat().st_size > 0


TOOLS = "{% for t in tools or [] %}{{ 'tool: ' + t['function']['name'] + '\n' }}{% endfor %}"
CALLS = (
    "{% for c in message['tool_calls'] or [] %}{{ '<tool_call>' + c['function'] | tojson + '</tool_call>' }}"
    "{% endfor %}<|im_end|>"
)


@pytest.mark.parametrize(("family", "history"), [("qwen3_vl", "exact"), ("qwen2_5_vl", "template")])
def test_episodes_with_a_tool_begin_with_an_image(tmp_path, family, history):
    environment = {"tools": [str(tmp_path / "tools.py:add")], "max_turns": 3, "max_tokens": 384}
    path = colours.write_task(
        tmp_path,
        family,
        run={"steps": 2, "keep_payloads": "all"},
        environment={**environment, "history": history},
        rollout={"group_size": 4, "max_tokens": 8, "max_prompt_tokens": 128},
        # All tokens are computed for it, whatever their rewards.
        algorithm={"kl": {"coefficient": 0.01}},
        validation={"every": 100},
    )
    (tmp_path / "tools.py").write_text(ADD)
    model = tmp_path / "model"
    give_texts(model, calls_of("add", NUMBERS), colours.SHAPE["vocab_size"])
    template = TOOLS + CHAT_TEMPLATE.replace("<|im_end|>", CALLS)
    (model / "chat_template.jinja").write_text(template)
    folder, _ = runs.finished(path, "--allow", environment["tools"][0], parent=tmp_path)
    assert json.loads((folder / "summary.json").read_text())["skipped"] == 0
    steps = runs.rows(folder, "step")
    assert len(steps) == 2
    for row in steps:
        assert row["environment/turns/max"] == 3
        assert row["environment/calls/mean"] > 0.5
        assert row["trainer/computed/logprob_diff/mean"] < 1e-4
        if history == "exact":
            assert row["environment/prefix/cached/share"] > 0
    shown = runs.finish(runs.start("ledger", "show", folder, "0", run_folder_parent=tmp_path))
    assert "turn 2: [" in shown and ("branch 1" in shown) == (history == "template")
    assert "the same: 2 steps" in runs.replay(folder, tmp_path)
