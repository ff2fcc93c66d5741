"""`trimaran data`: from files that others publish to what a model sees of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from commands.cli.main import main
from tests.cli.conftest import Ran
from tests.data.pictures import png
from tests.reward.rules.calling import DATA, needs_data
from tests.tiny_model import tiny_tokenizer
from tests.tiny_vision import IMAGE, tiny_vision_tokenizer

TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{{ part['text'] if part['type'] == 'text' else '?' }}"
    "{% endfor %}{% endif %}{{ '\n' }}{% endfor %}assistant: "
)

CONFIG = {
    "model_type": "qwen2_5_vl",
    "vision_config": {"patch_size": 14, "spatial_merge_size": 2},
    "image_token_id": IMAGE,
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tokenizer of one token a character. Its template takes images, of which each is one character."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text(
        json.dumps({"vision_config": {"patch_size": 14, "spatial_merge_size": 2}})
    )
    return tmp_path / "model"


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def gsm8k(folder: Path) -> Path:
    for split, size in (("train", 5), ("test", 2)):
        rows = [{"question": f"{n} + 1?", "answer": f"so\n#### {n + 1}"} for n in range(size)]
        write(folder / f"{split}.jsonl", [*rows, {"question": "?", "answer": ""}])
    return folder


def test_a_folder_becomes_a_file_a_split_once(tmp_path: Path, ran: Ran) -> None:
    words = ["data", "prepare", "gsm8k", "--from", str(gsm8k(tmp_path / "raw"))]
    words += ["-o", str(tmp_path / "out")]
    assert ran(words).out.splitlines() == [
        f"{tmp_path}/out/test.parquet: 2 rows of 3",
        "  1 dropped: no answer (first: test.jsonl:3)",
        f"{tmp_path}/out/train.parquet: 5 rows of 6",
        "  1 dropped: no answer (first: train.jsonl:6)",
    ]
    assert ran(words).out.count("is current; --overwrite makes it again") == 2
    assert "5 rows of 6" in ran([*words, "--overwrite"]).out
    out = ran([*words, "--split", "train", "--hold-out", "2", "--keep", "labels"]).out
    assert out.splitlines() == [
        f"{tmp_path}/out/train.parquet: 3 rows of 6, 2 in train-held-out.parquet",
        "  1 dropped: no answer (first: train.jsonl:6)",
        "  --keep labels: no row has it",
    ]


def test_options_that_do_not_fit_are_refused(tmp_path: Path, ran: Ran) -> None:
    words = ["data", "prepare", "gsm8k", "--from", str(gsm8k(tmp_path / "raw")), "-o"]
    one, folder = str(tmp_path / "one.parquet"), str(tmp_path)
    assert main([*words, one, "--split", "train"]) == 0
    assert (tmp_path / "one.card.json").is_file()
    for more, told in (
        ([one], "one file for test, train; name a folder, or take one with --split"),
        ([folder, "--max-prompt-tokens", "9"], "give --model FOLDER, whose tokenizer counts"),
        ([folder, "--keep", "answer"], "--keep answer: the file has a column of that name"),
        ([folder, "--min-pixels", "10", "--max-pixels", "9"], "--min-pixels 10: is more than"),
    ):
        assert told in ran([*words, *more], 2).err


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["prepare", "gsm8k", "--from", "a", "-o", "b", "--limit", "-1"], "--limit: -1 is less"),
        (["prepare", "gsm8k", "--from", "a", "-o", "b", "--workers", "0"], "--workers: 0 is less"),
        (["show", "run.yaml", "--count", "0"], "--count: 0 is less than 1"),
        (["show", "run.yaml", "--count", "x"], "--count: invalid whole number value: 'x'"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(
    words: list[str], reported: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["data", *words])
    assert reported in capsys.readouterr().err


def test_prompts_are_counted_by_the_models_tokenizer(tmp_path: Path, model: Path, ran: Ran) -> None:
    rows = [{"instruction": "a" * length, "output": "1"} for length in (4, 8)]
    source = write(tmp_path / "raw.jsonl", rows)
    words = ["data", "prepare", "alpaca", "--from", str(source), "-o", str(tmp_path / "out")]
    words += ["--model", str(model), "--max-prompt-tokens", "22", "--workers", "2"]
    assert "1 rows of 2; 22 to 22 tokens" in ran(words).out
    (model / "tokenizer.json").unlink()
    assert "holds no tokenizer that transformers can load" in ran([*words, "--overwrite"], 2).err


THINKING = TEMPLATE + "{% if not enable_thinking | default(true) %}no thoughts{% endif %}"


@pytest.mark.parametrize(
    ("template", "reported", "seen", "tokens"),
    [
        (THINKING, "enable_thinking=False is given to the chat template", "no thoughts", 35),
        # The tokenizer has neither "/" nor "_".
        (TEMPLATE, "does not know enable_thinking, so /no_think stands", "<unk>no<unk>think", 34),
    ],
)
def test_prepare_check_and_show_render_a_prompt_without_thinking_as_the_run_does(
    template: str,
    reported: str,
    seen: str,
    tokens: int,
    tmp_path: Path,
    model: Path,
    ran: Ran,
) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    tokenizer.save_pretrained(model)
    rows = [{"question": "1 + 1?", "answer": "2"}]
    words = ["data", "prepare", "gsm8k", "--from", str(write(tmp_path / "raw" / "t.jsonl", rows))]
    words += ["-o", str(tmp_path / "t.parquet"), "--template", "chat", "--thinking", "off"]
    assert "--thinking: is for counting tokens; give --model FOLDER" in ran(words, 2).err
    out = ran([*words, "--model", str(model)]).out
    assert f"{tokens} to {tokens} tokens" in out
    assert "as of a run with data.chat_template_kwargs.enable_thinking=false" in out
    config = run_file(tmp_path, model, train=str(tmp_path / "t.parquet"))
    kwargs = "data.chat_template_kwargs.enable_thinking=false"
    out = ran(["data", "show", config, kwargs, "--count", "1"]).out
    assert reported in out
    assert seen in out
    assert f"... {tokens} tokens" in out
    words = ["data", "check", config, kwargs, f"rollout.max_prompt_tokens={tokens - 1}"]
    assert f"{tokens} tokens; rollout.max_prompt_tokens is" in ran(words, 1).out
    assert "... 24 tokens" in ran(["data", "show", config, "--count", "1"]).out


def run_file(tmp_path: Path, model: Path, **data: Any) -> str:
    tree = {
        "model": {"path": str(model)},
        "data": data,
        "reward": {"rules": {"last_integer": 1.0}},
    }
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(tree))
    return str(path)


def test_show_prints_what_the_model_sees_in_the_runs_order(
    tmp_path: Path, model: Path, ran: Ran
) -> None:
    rows = [{"prompt": f"{n} + 1?", "answer": str(n + 1), "level": "easy"} for n in range(9)]
    path = write(tmp_path / "train.jsonl", rows)
    config = run_file(tmp_path, model, train=str(path), task="sums")
    words = ["data", "show", config, "data.shuffle=false", "--first", "8", "--count", "2"]
    assert ran(words).out.splitlines() == [
        "--- 8: train.jsonl:9, task sums",
        "user: 8 + 1?",
        "assistant: ",
        "... 24 tokens",
        "... answer: 9",
        "... level: easy",
        "--- 9: train.jsonl:1, task sums",
        "user: 0 + 1?",
        "assistant: ",
        "... 24 tokens",
        "... answer: 1",
        "... level: easy",
    ]
    assert "the run has no data.validation" in ran(["data", "show", config, "--validation"], 2).err


def test_show_has_tools_and_calls(tmp_path: Path, model: Path, ran: Ran) -> None:
    called = {
        "role": "assistant",
        "content": "I add.",
        "tool_calls": [{"function": {"name": "add"}}],
    }
    reported = {"role": "tool", "content": "3", "name": "add"}
    prompt = [{"role": "user", "content": "1 + 2?"}, called, reported]
    row = {"prompt": prompt, "answer": "3", "tools": [{"function": {"name": "add"}}]}
    path = write(tmp_path / "train.jsonl", [row])
    out = ran(["data", "show", str(path)]).out
    assert "[user] 1 + 2?\n[assistant] I add. add({})\n[tool] 3\n... tools: add\n" in out
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{% for t in tools %}{{ t.function.name }}\n{% endfor %}" + TEMPLATE
    tokenizer.save_pretrained(model)
    out = ran(["data", "show", run_file(tmp_path, model, train=str(path))]).out
    assert "\nadd\nuser: 1 + 2?" in out


def test_show_of_a_file_alone(tmp_path: Path, ran: Ran) -> None:
    path = write(tmp_path / "a.jsonl", [{"q": "1 + 1?", "answer": "2"}])
    out = ran(["data", "show", str(path), "data.prompt_key=q", "--count", "1"]).out
    assert "no such model; texts are shown without its chat template" in out
    assert "[user] 1 + 1?" in out


def test_check_names_every_bad_row(tmp_path: Path, model: Path, ran: Ran) -> None:
    (tmp_path / "good.png").write_bytes(png(56, 56))
    (tmp_path / "bad.png").write_bytes(png(200, 200)[:100])
    rows = [
        {"prompt": "wide?", "answer": "56", "image": "good.png"},
        {"prompt": "wide?", "answer": "56", "image": "bad.png"},
        {"prompt": "wide?", "answer": "many", "image": "good.png"},
        {"prompt": "<image> <image>", "answer": "56", "image": "good.png"},
        {"prompt": "", "answer": "56", "image": "good.png"},
    ]
    path = write(tmp_path / "train.jsonl", rows)
    config = run_file(tmp_path, model, train=str(path), image_key="image")
    *named, last = ran(["data", "check", config], 1).out.splitlines()
    assert [line.partition(": ")[0] for line in named] == [f"{path}:{n}" for n in (2, 3, 4, 5)]
    assert last == f"{path}: 5 rows, 4 of them bad"
    assert len(ran(["data", "check", config, "--limit", "1"], 1).out.splitlines()) == 2
    write(path, rows[:1])
    assert main(["data", "check", config]) == 0
    out, err = ran(["data", "check", config, "reward.rules={last_integr: 1.0}"], 2)
    assert (out, err.count("unknown rule; did you mean last_integer?")) == ("", 1)


def test_check_counts_the_tokens_of_whole_prompts(tmp_path: Path, model: Path, ran: Ran) -> None:
    """One for each character, and four for the image."""
    (tmp_path / "four.png").write_bytes(png(56, 56))
    rows = [{"prompt": "wide?", "answer": "56", "image": "four.png"}] * 2
    rows[1] = {**rows[1], "prompt": "wide??"}
    path = write(tmp_path / "train.jsonl", rows)
    config = run_file(tmp_path, model, train=str(path), image_key="image", min_pixels=3136)
    shown = ran(["data", "show", config, "data.shuffle=false", "--count", "1"]).out
    tokens = int(shown.partition(" tokens")[0].split()[-1])
    words = ["data", "check", config, f"rollout.max_prompt_tokens={tokens}"]
    named, last = ran(words, 1).out.splitlines()
    too_long = f"{tokens + 1} tokens; rollout.max_prompt_tokens is {tokens}"
    assert named == f"{path}:2: {too_long}"
    assert last == f"{path}: 2 rows, 1 of them bad"
    words = ["data.shuffle=false", "--count", "2", f"rollout.max_prompt_tokens={tokens}"]
    assert ran(["data", "show", config, *words]).out.count(f"... skipped: {too_long}") == 1
    assert main(["data", "check", config, f"rollout.max_prompt_tokens={tokens + 1}"]) == 0
    out = ran(["data", "check", config, "rollout.max_prompt_tokens=3"], 1).out
    assert f"{path}:1: its 1 images take 4 tokens, and rollout.max_prompt_tokens is 3;" in out


def test_a_text_with_the_models_own_image_token_is_named(tmp_path: Path, ran: Ran) -> None:
    """A run skips it; docs/vision.md."""
    model = tmp_path / "model"
    tokenizer = tiny_vision_tokenizer()
    tokenizer.save_pretrained(model)
    (model / "config.json").write_text(json.dumps(CONFIG))
    rows = [{"prompt": text, "answer": "1"} for text in ("wide?", "<|image_pad|>?")]
    path = write(tmp_path / "train.jsonl", rows)
    config = run_file(tmp_path, model, train=str(path))
    reported = "1 image tokens of 0 images; a text must not hold the model's image token itself"
    named, last = ran(["data", "check", config], 1).out.splitlines()
    assert named.startswith(f"{path}:2: the chat template makes {reported}")
    assert last == f"{path}: 2 rows, 1 of them bad"
    out = ran(["data", "show", config, "data.shuffle=false", "--count", "2"]).out
    first, second = out.split("--- 1: ")
    assert "skipped" not in first
    assert f"... skipped: the chat template makes {reported}" in second
    (model / "config.json").write_text(json.dumps({**CONFIG, "model_type": "qwen2"}))
    assert main(["data", "check", config]) == 0


def test_show_writes_images_and_names_what_a_run_skips(
    tmp_path: Path, model: Path, ran: Ran
) -> None:
    (tmp_path / "good.png").write_bytes(png(56, 56))
    rows = [{"prompt": "wide?", "answer": "56", "image": f"{name}.png"} for name in ("good", "no")]
    path = write(tmp_path / "train.jsonl", rows)
    config = run_file(tmp_path, model, train=str(path), image_key="image", min_pixels=3136)
    words = ["data", "show", config, "data.shuffle=false", "--count", "2"]
    out = ran([*words, "--images", str(tmp_path / "seen")]).out
    assert f"--- 1: train.jsonl:2, skipped: {path}:2: image 1 (no.png): there is no file" in out
    assert f"... {tmp_path}/seen/0-1.png" in out
    assert (tmp_path / "seen" / "0-1.png").read_bytes()[:4] == b"\x89PNG"


@needs_data
@pytest.mark.e2e
@pytest.mark.parametrize(
    ("name", "source", "rows", "rule", "data"),
    [
        ("gsm8k", "gsm8k", 1319, "gsm8k", {}),
        ("math", "math", 500, "math", {}),
        ("deepscaler", "deepscaler/train_math.json", 2998, "math", {}),
        ("geo3k", "geometry", 96, "geo3k", {"image_key": "images", "max_pixels": 262144}),
    ],
)
def test_published_datasets_are_prepared_and_pass_the_check(
    tmp_path: Path,
    model: Path,
    capsys: pytest.CaptureFixture[str],
    ran: Ran,
    name: str,
    source: str,
    rows: int,
    rule: str,
    data: dict[str, Any],
) -> None:
    words = ["data", "prepare", name, "--from", str(DATA / source), "-o", str(tmp_path / "out")]
    assert main([*words, "--limit", "3000"]) == 0
    paths = sorted((tmp_path / "out").glob("*.parquet"))
    config = run_file(tmp_path, model, train=[str(path) for path in paths], **data)
    capsys.readouterr()
    words = [f"reward.rules={{{rule}: 1.0}}", "rollout.max_prompt_tokens=30000"]  # of one character
    out = ran(["data", "check", config, *words]).out
    assert f"{paths[0]}: {rows} rows, 0 of them bad" in out
