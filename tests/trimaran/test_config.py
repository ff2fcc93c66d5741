from pathlib import Path

import pytest
import yaml

from trimaran.config import (
    RuleSection,
    config_to_tree,
    dump_config,
    load_config,
    parse_config,
)
from trimaran.errors import InputError

GDPO, WHITENED = {"advantage": "gdpo"}, {"advantage": {"whiten": True}}
MINIMAL = {"model": {"path": "m"}, "data": {"train": "t"}, "reward": {"rules": {"exact": 1}}}


def written(tmp_path, text):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return path


def fault(tree):
    with pytest.raises(InputError) as caught:
        parse_config(tree)
    return str(caught.value)


def test_paths_are_taken_from_the_folder_of_the_file_and_overrides_win(tmp_path):
    path = written(
        tmp_path,
        "model: {path: model}\ndata: {train: /data/t.jsonl}\nreward: {rules: {exact: 1}}\n",
    )
    config = load_config(path, ["trainer.learning_rate=1e-5", "run.steps=3"])
    assert config.model.path == tmp_path / "model"
    assert list(map(str, config.data.files)) == ["/data/t.jsonl"]
    assert (config.trainer.learning_rate, config.run.steps) == (1e-5, 3)


def test_a_run_has_steps_or_epochs_and_an_override_takes_the_place_of_either(tmp_path):
    assert parse_config(MINIMAL).run.steps == 20
    with pytest.raises(InputError, match="run: steps and epochs: give one of them"):
        parse_config(MINIMAL | {"run": {"steps": 3, "epochs": 2}})
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(MINIMAL | {"run": {"steps": 3, "groups_per_step": 4}}))
    run = load_config(path, ["run.epochs=2"]).run
    assert (run.steps, run.epochs, run.num_steps) == (None, 2, 0)
    with pytest.raises(InputError, match="steps and epochs"):
        load_config(path, ["run.epochs=2", "run.steps=3"])
    resolved = parse_config(config_to_tree(load_config(path, ["run.epochs=2"]))).run
    assert resolved == run, "what is written down reads back"

    # 2 x 9 prompts are 4 whole steps of 4: a batch goes on into the next epoch.
    assert run.counted(9).num_steps == 4
    assert run.counted(9).counted(100).num_steps == 4, "counted once"
    with pytest.raises(InputError, match=r"run\.epochs: 2 x 1 prompts are less than a step of 4"):
        run.counted(1)


def test_a_section_given_as_a_value_takes_the_place_of_the_whole_section(tmp_path):
    """As README.md says: what was in a loss or in the rules does not stay beside what is given."""
    path = written(
        tmp_path,
        "model: {path: m}\ndata: {train: t}\nreward: {rules: {exact: 1}}\n"
        "algorithm: {loss: {type: ppo_clip, dual_clip: 3.0}}\n"
        "metrics: {project: mine, also: [verl]}\n",
    )
    words = ["algorithm.loss={type: gspo}", "reward.rules={gsm8k: 1}", "metrics={also: []}"]
    config = load_config(path, words)
    assert config.algorithm.loss.type == "gspo"
    assert list(config.reward.rules) == ["gsm8k"]
    assert config.metrics == load_config(path, ["metrics={}"]).metrics
    assert load_config(path, ["metrics.also=[]"]).metrics.project == "mine"


def test_a_path_beside_the_folder_of_the_file_is_named_by_its_place(tmp_path):
    """A manager takes no path with `..` in it."""
    (tmp_path / "examples").mkdir()
    path = written(
        tmp_path / "examples",
        """
model: {path: ../models/m}
data: {train: ../t.jsonl}
reward:
  rules:
    file: {function: "../style.py:score"}
    module: {function: "package.style:score"}
    remote: {plugin: {url: "https://h:1", ca_file: ca.pem}}
environment: {tools: ["tools.py:Search", "mine.tools:add"]}
""",
    )
    config, beside = load_config(path), tmp_path / "examples"
    assert (config.model.path, *config.data.files) == (tmp_path / "models/m", tmp_path / "t.jsonl")
    rules = config.reward.rules
    assert rules["file"].function == f"{tmp_path}/style.py:score"
    assert rules["module"].function == "package.style:score"
    plugin, environment = rules["remote"].plugin, config.environment
    assert plugin and plugin.ca_file == beside / "ca.pem"
    assert environment and environment.tools == (f"{beside}/tools.py:Search", "mine.tools:add")
    section = load_config(path, ["environment={factory: game.py:Game}"]).environment
    assert section and section.factory == f"{Path.cwd()}/game.py:Game"


def test_an_environment_may_reward_in_the_place_of_rules():
    tree = {"model": {"path": "m"}, "data": {"train": "t"}}
    config = parse_config({**tree, "environment": {"factory": "game.py:Game"}})
    assert not config.reward.rules
    assert parse_config(config_to_tree(config)) == config
    with pytest.raises(InputError, match=r"reward\.rules: missing"):
        parse_config(tree)


def test_a_program_gets_no_images():
    agent = {"environment": {"agent": {}}}
    parse_config({**MINIMAL, **agent})
    data = {"train": "t", "image_key": "images"}
    parse_config({**MINIMAL, "data": data, "environment": {"factory": "game.py:Game"}})
    with pytest.raises(InputError, match=r"environment\.agent: a program asks by texts"):
        parse_config({**MINIMAL, "data": data, **agent})


def test_a_rule_is_a_weight_or_a_section():
    rules = {"exact": 0.5, "style": {"function": "m:f", "options": {"words": [1, "two", None]}}}
    config = parse_config({**MINIMAL, "reward": {"rules": rules}})
    assert config.reward.rules["exact"] == RuleSection(weight=0.5)
    style = config.reward.rules["style"]
    assert (style.weight, style.function) == (1.0, "m:f")
    assert style.options == {"words": [1, "two", None]}


def test_the_resolved_configuration_reads_back_the_same(tmp_path):
    rules = {
        "exact": 1,
        "file": {"function": "/rewards/style.py:score", "options": {"a": [1]}, "minimum": -1},
        "remote": {"weight": -0.5, "plugin": {"url": "http://h:1"}, "maximum": 2},
    }
    tree = {**MINIMAL, "reward": {"rules": rules}, "endpoints": {"reward": "127.0.0.1:7"}}
    config = parse_config(tree)
    again = load_config(written(tmp_path, dump_config(config)), [])
    assert again.model_copy(update={"model": config.model, "data": config.data}) == config


@pytest.mark.parametrize(
    ("section", "values", "reported"),
    [
        ("trainer", {"learning_rat": 1}, "did you mean trainer.learning_rate?"),
        ("trainer", {"min_learning_rate": 1}, "must not be more than learning_rate"),
        ("rollout", {"temperature": "warm"}, "rollout.temperature"),
        ("rollout", {"group_size": 1}, "group compares the completions of a group"),
        ("reward", {"rules": "exact"}, "reward.rules: must be a mapping, name: value"),
        ("reward", {"rules": {"exact": float("nan")}}, "reward.rules.exact.weight"),
        ("reward", {"rules": {"exact": {"wait": 1}}}, "did you mean reward.rules.exact.weight?"),
        ("reward", {"rules": {"a": {"rule": "b", "function": "c.d:e"}}}, "rules.a: give one of"),
        ("reward", {"rules": {"a": {"plugin": {"url": "ftp://h"}}}}, "rules.a.plugin.url"),
        ("reward", {"rules": {"a": {"tasks": ["sum"]}}}, "rules.a.tasks: 'sum' is the task of no"),
        ("algorithm", {"updates_per_batch": 9}, "must not be more than run.groups_per_step"),
        ("algorithm", GDPO | {"kl": {"coefficient": 0.1, "place": "reward"}}, "looks at scores"),
        ("algorithm", {"advantage": "remax", "dynamic_sampling": {}}, "with advantage remax a"),
        ("algorithm", WHITENED | {"dynamic_sampling": {}}, "with advantage group, whiten: true a"),
        ("algorithm", {"dynamic_sampling": {"term": "style"}}, "style is none of reward.rules"),
        ("algorithm", {"correction": {"old": "rollout", "token_bounds": [0.5, 2]}}, "nothing dif"),
        ("algorithm", {"correction": {"token_bounds": [2, 3]}}, "must be [low, high] with 1"),
        ("algorithm", {"advantage": {"type": "pass_at_k", "k": 8}}, "fewer than 9; give 9 or more"),
        ("algorithm", {"kl": {"adaptive": {"target": 1}}}, "adaptive starts from coefficient"),
        ("endpoints", {"rollout": ["127.0.0.1:1", "127.0.0.1:2"]}, "endpoints.rollout names 2"),
        ("endpoints", {"reward": "127.0.0.1:99999"}, "endpoints.reward: there is no port above"),
        ("run", {"keep_best": 1}, "run.keep_best (1) compares validations: give data.validation"),
        ("run", {"best_by": "validation/pass_at/<k>"}, "run.best_by"),
        ("run", {"best_by": "reward/mean"}, "did you mean reward/completion/mean?"),
        ("run", {"checkpoint_models": True, "checkpoints": "s3://b"}, "checkpoint_models: in a"),
        ("run", {"name": "a/b"}, "run.name"),
        ("run", {"steps": 10**10}, "run.steps"),
        ("run", {"hold_timeout": 1e300}, "run.hold_timeout"),
        ("run", "", "run: must be a section of name, folder"),
        ("validation", {"only": True}, "validation.only: there is nothing to validate; give data"),
        ("validation", {"correct_by": ["math"]}, "validation.correct_by: math is none of reward"),
        ("validation", {"correct_by": "exact"}, "correct_by: must be a list, such as [exact]"),
        ("validation", {"logged": 5}, "validation.logged sends answers to metrics.sinks"),
        ("network", {"subnet": "10.0.0.1/8"}, "network.subnet: 10.0.0.1/8 has host bits set"),
        ("network", {"subnet": "127.0.0.0/8"}, "network.subnet: 127.0.0.0/8 is this machine alone"),
        ("network", {"ports": "80-90"}, "network.ports: must be a range within 1024-65535"),
        ("data", {}, "data.train: missing"),
        ("data", {"train": None}, "data.train.0: must be a section of prompt_key"),
        ("data", {"train": "t", "task": ""}, "data.task: String should have at least 1"),
        ("data", {"train": "t", "min_pixels": 9, "max_pixels": 8}, "data: min_pixels (9) must not"),
        ("data", {"train": [{"weight": 2}]}, "data.train.0.path: missing"),
        ("data", {"train": [{"path": "t", "wieght": 2}]}, "did you mean data.train.0.weight?"),
        ("data", {"train": "t", "validation": [{"path": "v", "weight": 1}]}, "unknown key"),
        *(
            ("data", {"train": "t", "chat_template_kwargs": kwargs}, reported)
            for kwargs, reported in (
                ({"enable_thinking": 0}, "enable_thinking must be true or false (given: 0)"),
                ({"enable_thinking": "false"}, "must be true or false (given: 'false')"),
                ({"effort": ["low"]}, "effort: must be true, false, a number or a text (given: ['"),
            )
        ),
    ],
)
def test_a_wrong_key_or_value_is_named_with_what_would_be_right(section, values, reported):
    assert reported in fault({**MINIMAL, section: values})


def test_what_may_be_given():
    kwargs = {"enable_thinking": False, "effort": "low"}
    data = parse_config({**MINIMAL, "data": {"train": "t", "chat_template_kwargs": kwargs}}).data
    assert data.chat_template_kwargs == kwargs
    rules = {"rules": {"a.b": {"rule": "exact_match"}}}
    validation = {"correct_by": ["a.b", "a.b.c"]}
    config = parse_config({**MINIMAL, "reward": rules, "validation": validation})
    assert config.validation.correct_by == ("a.b", "a.b.c")


def test_best_checkpoints_are_chosen_by_any_metric_that_the_run_makes():
    def best_by(key, samples=4, every=5, **others):
        run = {"keep_best": 1, "best_by": key, "checkpoint_every": every, **others}
        data = {"train": "t", "validation": "v"}
        return {**MINIMAL, "data": data, "run": run, "validation": {"samples": samples, "every": 5}}

    for key in ("validation/pass_at/4", "validation/task/a/b/greedy_correct/share"):
        assert parse_config(best_by(key)).run.best_by == key
        assert "that is a multiple of validation.every (5)" in fault(best_by(key, every=3))
    least = "-rollout/completion/truncated/share"
    assert parse_config(best_by(least, every=3)).run.best_by == least


def test_every_fault_is_named_at_once():
    text = fault({"model": {"pth": "m"}, "data": {}, "reward": {"rules": {"exact": 1}}})
    assert "did you mean model.path?" in text
    assert "data.train: missing" in text


@pytest.mark.parametrize(
    ("text", "reported"),
    [("- a list", "must hold sections"), ("a: [", "not YAML"), (None, "cannot be read")],
)
def test_a_file_that_is_no_configuration(tmp_path, text, reported):
    path = tmp_path / "run.yaml" if text is None else written(tmp_path, text)
    with pytest.raises(InputError, match=reported):
        load_config(path)


@pytest.mark.parametrize("override", ["run.steps", "=3", "run.name.x=1", "run.steps=["])
def test_an_override_that_is_none(tmp_path, override):
    text = "model: {path: m}\ndata: {train: t}\nreward: {rules: {exact: 1}}\nrun: {name: x}\n"
    with pytest.raises(InputError):
        load_config(written(tmp_path, text), [override])


def test_each_of_several_datasets_has_the_keys_of_data_that_it_leaves_out(tmp_path):
    text = """
model: {path: m}
data:
  train: [a.jsonl, {path: sub/b.parquet, weight: 3, task: geometry, image_key: images}]
  validation: v.jsonl
  task: sums
  prompt_key: question
reward: {rules: {exact_match: 1}}
"""
    config = load_config(written(tmp_path, text))
    first, second = config.data.train
    (held_out,) = config.data.validation
    assert (first.path, first.task, first.prompt_key) == (tmp_path / "a.jsonl", "sums", "question")
    assert (second.path, second.weight, second.task) == (tmp_path / "sub/b.parquet", 3, "geometry")
    assert (second.prompt_key, held_out.task) == ("question", "sums")
    assert config.data.has_images
    assert parse_config(config_to_tree(config)) == config
    assert load_config(written(tmp_path, dump_config(config))) == config
    tree = config_to_tree(config)["data"]
    assert tree["train"][0] == {"path": f"{tmp_path}/a.jsonl", "weight": 1}
    assert tree["validation"] == f"{tmp_path}/v.jsonl"
    again = load_config(written(tmp_path, dump_config(config)), ["data.task=products"])
    assert [one.task for one in again.data.train] == ["products", "geometry"]
    changed = load_config(written(tmp_path, text), ["data.train=x.jsonl", "data.validation=null"])
    assert changed.data.files == (Path.cwd() / "x.jsonl",)
    listed = load_config(written(tmp_path, text), ["data.train=[{path: x.jsonl, weight: 2}]"])
    assert [(one.path, one.weight) for one in listed.data.train] == [(Path.cwd() / "x.jsonl", 2)]


def test_a_replica_has_room_for_the_longest_answer_whatever_it_is_for() -> None:
    least = MINIMAL | {"rollout": {"max_tokens": 100, "max_prompt_tokens": 10}}
    for section, tokens, key in (
        ({}, 100, "rollout.max_tokens"),
        ({"max_tokens": 50}, 100, "rollout.max_tokens"),
        ({"max_tokens": 200}, 200, "validation.max_tokens"),
    ):
        one = parse_config({**least, "validation": section})
        assert (one.max_answer_tokens, one.max_answer_key) == (tokens, key)
        assert one.max_model_tokens == 10 + tokens


def test_pools_that_cannot_take_turns_are_refused_with_what_to_change():
    def colocated(**sections):
        run = {"pools": "colocated", **sections.pop("run", {})}
        return {**MINIMAL, "run": run, **sections}

    assert parse_config(colocated()).num_devices == 1
    assert parse_config(MINIMAL).num_devices == 2
    four = {"data_parallel": 4}
    two_each = {"replicas": 2, "tensor_parallel": 2}
    assert parse_config(colocated(trainer=four, rollout=two_each)).num_devices == 4
    devices = {"rollout": {"devices": [0]}, "trainer": {"devices": [1]}}
    for sections, words in (
        ({"run": {"max_lag": 1}}, "run.max_lag is 1"),
        ({"rollout": {"replicas": 2}}, "(2 x 1 = 2) is not the number of trainer ranks (1,"),
        ({"trainer": four, "rollout": {"tensor_parallel": 2}}, "(1 x 2 = 2) is not the number"),
        ({"trainer": four, "rollout": {"tensor_parallel": 4, "hosts": 2}}, "rollout.hosts is 2"),
        ({"rollout": {"max_replicas": 2}}, "rollout.max_replicas (2)"),
        (devices, "name different devices"),
        ({"trainer": {"device": "npu"}, "rollout": {"device": "cuda"}}, "name the same kind"),
        (
            {"trainer": {"labels": {"a": "1"}}, "rollout": {"labels": {"a": "2"}}},
            "of different pools",
        ),
        ({"weight_sync": {"transport": "collective"}}, "weight_sync.transport is collective"),
        ({"network": {"subnet": "10.0.0.0/8"}}, "network.subnet is for several hosts"),
    ):
        text = fault(colocated(**sections))
        assert "run.pools: colocated, and" in text
        assert words in text
