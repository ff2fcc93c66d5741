"""A run's prompts: from its configuration to the prompt of a group."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from commands.cli.train.preflight import check_datasets
from services.controller import datasets
from services.controller.datasets import (
    HeldOutPrompts,
    TrainingPrompts,
    take_turns,
)
from tests.data.pictures import png, size_of
from trimaran.config import RunConfig, parse_config
from trimaran.data.prompts import Dataset, UnusableImageError
from trimaran.errors import InputError, UnavailableError
from trimaran.types import Prompt


def configured(folder: Path, **data: Any) -> RunConfig:
    return parse_config(
        {
            "run": {"seed": 3},
            "model": {"path": str(folder)},
            "data": data,
            "reward": {"rules": {"exact_match": 1.0}},
            "validation": {"max_prompts": 3},
        }
    )


def write(path: Path, size: int, **columns: Any) -> str:
    rows = [{"prompt": f"{path.stem} {n}", "answer": str(n), **columns} for n in range(size)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def write_vision(folder: Path) -> None:
    """The facts of a model whose image tokens are 32 pixels square."""
    vision = {"patch_size": 16, "spatial_merge_size": 2}
    (folder / "config.json").write_text(json.dumps({"vision_config": vision}))


def test_a_disk_that_hangs_is_reported_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(tmp_path, train=[{"path": write(tmp_path / "a.jsonl", 5)}])
    prompts, works = TrainingPrompts.open(config), threading.Event()
    read = Dataset.__getitem__

    def hangs(self: Dataset, place: int) -> Prompt:
        works.wait(10)
        return read(self, place)

    monkeypatch.setattr(Dataset, "__getitem__", hangs)
    monkeypatch.setattr(datasets._disk(), "timeout", 0.1)
    try:
        with pytest.raises(
            UnavailableError, match=r"a\.jsonl: row \d: its disk has not answered for 0\.1 s"
        ):
            asyncio.run(asyncio.wait_for(prompts.fetch(0), 60))
    finally:
        works.set()


def test_each_prompt_of_a_mixture_has_the_task_and_keys_of_its_dataset(tmp_path: Path) -> None:
    first, second = (write(tmp_path / f"{name}.jsonl", 5, q="?") for name in ("a", "b"))
    sets = [{"path": first, "weight": 2, "system": "Add."}, {"path": second, "prompt_key": "q"}]
    config = configured(tmp_path, train=sets, task="sums")
    prompts = TrainingPrompts.open(config)
    found = [asyncio.run(prompts.fetch(number)) for number in range(30)]
    assert [prompts.at(number) for number in range(30)] == found
    names = [prompt.prompt_id.partition(":")[0] for prompt in found]
    assert [names[n : n + 3].count("a.jsonl") for n in range(0, 30, 3)] == [2] * 10
    assert {prompt.task for prompt in found} == {"sums"}
    assert {len(prompt.messages) for prompt in found if "a.jsonl" in prompt.prompt_id} == {2}
    assert {p.messages[0].text for p in found if "b.jsonl" in p.prompt_id} == {"?"}
    assert len(prompts) == 10


def test_held_out_prompts_are_taken_of_each_dataset_in_turn(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{name}.jsonl", size) for name, size in (("a", 1), ("b", 4))]
    prompts = HeldOutPrompts.open(configured(tmp_path, train=paths[0], validation=paths))
    found = [asyncio.run(prompts.fetch(index)).prompt_id for index in range(len(prompts))]
    assert found == ["a.jsonl:1", "b.jsonl:1", "b.jsonl:2"]
    assert list(take_turns([2, 0, 1], 9)) == [(0, 0), (2, 0), (0, 1)]
    assert len(HeldOutPrompts.open(configured(tmp_path, train=paths[0]))) == 0


def test_images_are_prepared_for_the_runs_model(tmp_path: Path) -> None:
    (tmp_path / "1.png").write_bytes(png(100, 100))
    path = write(tmp_path / "a.jsonl", 2, image="1.png")
    data = {"train": path, "image_key": "image", "min_pixels": 1, "max_pixels": 4096}
    with pytest.raises(InputError, match="controller's host needs its config"):
        TrainingPrompts.open(configured(tmp_path, **data))
    write_vision(tmp_path)
    prompt = asyncio.run(TrainingPrompts.open(configured(tmp_path, **data)).fetch(0))
    assert [size_of(image) for image in prompt.messages[0].images] == [(64, 64)]


def test_a_row_with_too_many_images_is_refused_before_any_is_opened(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", 1, image=["missing.png"] * 5)
    write_vision(tmp_path)
    config = configured(tmp_path, train=path, validation=path, image_key="image")
    message = r"a\.jsonl:1: 5 images; rollout\.limit_images is 4"
    for prompts in (TrainingPrompts.open(config), HeldOutPrompts.open(config)):
        with pytest.raises(UnusableImageError, match=message):
            asyncio.run(prompts.fetch(0))
    with pytest.raises(InputError, match=message):
        check_datasets(config)


def with_vision(folder: Path, **rollout: Any) -> RunConfig:
    """A row of two images of 27 x 27 image tokens each."""
    write_vision(folder)
    (folder / "one.png").write_bytes(png(27 * 32, 27 * 32))
    path = write(folder / "a.jsonl", 1, image=["one.png"] * 2)
    tree = configured(folder, train=path, image_key="image").model_dump(mode="json")
    return parse_config({**tree, "rollout": rollout})


def test_a_row_whose_images_take_more_tokens_than_a_prompt_may_have_is_skipped(
    tmp_path: Path,
) -> None:
    config = with_vision(tmp_path, max_prompt_tokens=1457)
    check_datasets(config)
    with pytest.raises(UnusableImageError) as caught:
        asyncio.run(TrainingPrompts.open(config).fetch(0))
    assert str(caught.value) == (
        f"{tmp_path}/a.jsonl:1: its 2 images take 1458 tokens, and rollout.max_prompt_tokens is 1457;"
        " raise that, or lower data.max_pixels and data.min_pixels"
    )
    assert caught.value.prompt.prompt_id == "a.jsonl:1"
    enough = with_vision(tmp_path, max_prompt_tokens=1458)
    assert len(asyncio.run(TrainingPrompts.open(enough).fetch(0)).messages[0].images) == 2


def test_images_that_never_fit_are_refused_at_the_start_and_not_opened(tmp_path: Path) -> None:
    """Of 512 x 512 pixels each, the least that `data.min_pixels` allows: 256 tokens."""
    config = with_vision(tmp_path, max_prompt_tokens=511)
    (tmp_path / "one.png").unlink()
    with pytest.raises(InputError, match=r"a\.jsonl:1: its 2 images take 512 tokens, .* is 511;"):
        check_datasets(config)
    check_datasets(with_vision(tmp_path, max_prompt_tokens=512))
