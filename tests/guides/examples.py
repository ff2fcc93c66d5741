"""The example runs of verl, EasyR1, MindSpeed-RL and MindSpeed-MM, by their published settings (files/).

`published` are words without which they are no run here: where rows and model are. `on_a_laptop` are those that make
a run of each with a tiny model on a CPU. In both, {data} and {model} stand for folders.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path

from commands.cli.main import main
from tests import tiny_model, tiny_vision
from tests.guides import rows

FILES = Path(__file__).parent / "files"


@dataclass(frozen=True, slots=True)
class Example:
    system: str
    """As `trimaran import` calls it."""
    file: str
    recipe: str
    """As `trimaran data prepare` calls it."""
    template: str | None = None
    """Another one than the recipe's."""

    @property
    def published(self) -> list[str]:
        return f"{PLACES[self.system]} {STEPS.get(self.system, '')}".split()

    @property
    def on_a_laptop(self) -> list[str]:
        return f"{PLACES[self.system]} {LAPTOP[self.system]}".split()

    @property
    def has_images(self) -> bool:
        return self.recipe == "geo3k"

    def prepare(self, folder: Path) -> None:
        """Rows, in `folder`."""
        write: Callable[[Path], Path] = rows.write_geo3k if self.has_images else rows.write_gsm8k
        source = write(folder / "source")
        words = ["data", "prepare", self.recipe, "--from", str(source), "-o", str(folder / "data")]
        assert main(words + (["--template", self.template] if self.template else [])) == 0

    def bring_in(self, folder: Path, model: Path, words: Sequence[str]) -> Path:
        """`trimaran import` with these words; the run's file."""
        target = folder / "run.yaml"
        given = [word.format(data=folder / "data", model=model) for word in words]
        file = FILES / self.file
        own = words_of(file, folder) if file.suffix == ".sh" else [str(file)]
        with chdir(file.parent):
            assert main(["import", self.system, *own, *given, "-o", str(target)]) == 0
        return target


def words_of(script: Path, folder: Path, *options: str) -> list[str]:
    """The words behind `python3 -m MODULE`, as bash hands them to that command. As where `trimaran import SYSTEM` stands
    in its place, the shell expands them."""
    stand_in, seen = folder / "bin" / "python3", folder / "words"
    stand_in.parent.mkdir(exist_ok=True)
    stand_in.write_text(f'#!/bin/sh\nshift 2\nprintf "%s\\n" "$@" > {seen}\n')
    stand_in.chmod(0o755)
    path = f"{stand_in.parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    command = ["bash", script, *options]
    # Captured: a script whose last line ends in a pipe is over before the command is.
    subprocess.run(
        command, cwd=folder, env=environment, timeout=30, check=True, capture_output=True
    )
    return seen.read_text().splitlines()


def write_models(folder: Path) -> dict[bool, Path]:
    """One without images and one with."""
    longest = {"max_position_embeddings": 4096}
    shape, text = {**tiny_model.SHAPE, **longest}, {**tiny_vision.TEXT, **longest}
    return {
        False: tiny_model.write_tiny_model(folder / "text", "qwen2", shape=shape),
        True: tiny_vision.write_tiny_vision(folder / "vision", num_layers=2, text=text),
    }


PLACES = {
    "verl": "data.train_files={data}/train.parquet data.val_files={data}/test.parquet"
    " actor_rollout_ref.model.path={model}",
    "easyr1": "data.train_files={data}/train.parquet data.val_files={data}/test.parquet"
    " worker.actor.model.model_path={model}",
    "mindspeed-rl": "megatron_training.data_path={data}/train.parquet"
    " megatron_training.tokenizer_name_or_path={model}",
}
"""Where rows and model are."""
STEPS = {"verl": "trainer.total_training_steps=30", "easyr1": "trainer.max_steps=30"}
LAPTOP = {
    "verl": "trainer.total_training_steps=3 data.train_batch_size=4 actor_rollout_ref.actor.ppo_mini_batch_size=1"
    " data.max_response_length=16 actor_rollout_ref.rollout.tensor_model_parallel_size=1"
    " actor_rollout_ref.rollout.enforce_eager=True trainer.n_gpus_per_node=2 trainer.logger=console",
    "easyr1": "trainer.max_steps=3 data.rollout_batch_size=4 worker.actor.global_batch_size=1"
    " data.max_response_length=16 worker.rollout.tensor_parallel_size=1 worker.rollout.enforce_eager=true"
    " trainer.n_gpus_per_node=2 trainer.logger=console",
    "mindspeed-rl": "megatron_training.train_iters=3 megatron_training.global_batch_size=2"
    " rl_config.mini_batch_size=2 rl_config.actor_resource.num_npus=2"
    " actor_config.tensor_model_parallel_size=1 actor_config.pipeline_model_parallel_size=1"
    " actor_config.save={data}/checkpoints generate_config.sampling_config.max_tokens=16"
    " generate_config.enable_prefix_caching=false",
}
EXAMPLES = {
    "verl-gsm8k": Example("verl", "verl_gsm8k.sh", "gsm8k"),
    "verl-geo3k": Example("verl", "verl_geo3k.sh", "geo3k"),
    "easyr1-gsm8k": Example("easyr1", "easyr1/math.sh", "gsm8k", "think_boxed"),
    "easyr1-geo3k": Example("easyr1", "easyr1/geo3k.sh", "geo3k"),
    "mindspeed-rl-gsm8k": Example(
        "mindspeed-rl", "mindspeed_rl_qwen25_7b.yaml", "gsm8k", "qwen_r1"
    ),
    "mindspeed-mm-geo3k": Example("mindspeed-rl", "mindspeed_mm_qwen25vl_3b.yaml", "geo3k"),
}
