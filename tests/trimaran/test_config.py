import pytest

from trimaran.config import dump_config, load_config, parse_config
from trimaran.errors import InputError

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
    assert str(config.data.train) == "/data/t.jsonl"
    assert (config.trainer.learning_rate, config.run.steps) == (1e-5, 3)


def test_the_resolved_configuration_reads_back_the_same(tmp_path):
    config = parse_config({**MINIMAL, "endpoints": {"reward": "127.0.0.1:7"}})
    again = load_config(written(tmp_path, dump_config(config)), [])
    assert again.model_copy(update={"model": config.model, "data": config.data}) == config


@pytest.mark.parametrize(
    ("section", "values", "told"),
    [
        ("trainer", {"learning_rat": 1}, "did you mean trainer.learning_rate?"),
        ("trainr", {}, "did you mean trainer?"),
        ("rollout", {"replicas": 0}, "rollout.replicas"),
        ("rollout", {"temperature": "warm"}, "rollout.temperature"),
        ("rollout", {"engine": "sglang"}, "'vllm' or 'transformers'"),
        ("reward", {"rules": {}}, "reward.rules"),
        ("trainer", {"data_parallel": 3}, "must be a multiple"),
        ("endpoints", {"rollout": ["127.0.0.1:1", "127.0.0.1:2"]}, "endpoints.rollout names 2"),
        ("endpoints", {"reward": "somewhere"}, "endpoints.reward"),
        (
            "endpoints",
            {"reward": "127.0.0.1:99999"},
            "endpoints.reward: there is no port above 65535",
        ),
        ("reward", {"rules": {"exact": float("nan")}}, "reward.rules.exact"),
        ("trainer", {"learning_rate": float("inf")}, "trainer.learning_rate"),
        ("weight_sync", {"address": "0.0.0.0"}, "weight_sync.address: 0.0.0.0 is all interfaces"),
        ("run", {"name": "a/b"}, "run.name"),
        ("run", "", "run: must be a section of name, folder"),
        ("data", {}, "data.train: missing"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_what_would_be_right(section, values, told):
    assert told in fault({**MINIMAL, section: values})


def test_every_fault_is_named_at_once():
    text = fault({"model": {"pth": "m"}, "data": {}, "reward": {"rules": {"exact": 1}}})
    assert "did you mean model.path?" in text
    assert "data.train: missing" in text


@pytest.mark.parametrize(
    ("text", "told"),
    [("- a list", "must hold sections"), ("a: [", "not YAML"), (None, "cannot be read")],
)
def test_a_file_that_is_no_configuration(tmp_path, text, told):
    path = tmp_path / "run.yaml" if text is None else written(tmp_path, text)
    with pytest.raises(InputError, match=told):
        load_config(path)


@pytest.mark.parametrize("override", ["run.steps", "=3", "run.name.x=1", "run.steps=["])
def test_an_override_that_is_none(tmp_path, override):
    text = "model: {path: m}\ndata: {train: t}\nreward: {rules: {exact: 1}}\nrun: {name: x}\n"
    with pytest.raises(InputError):
        load_config(written(tmp_path, text), [override])
