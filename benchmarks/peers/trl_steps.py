"""TRL's GRPOTrainer on the benchmark's prompts; prints {"seconds": [per step], "tokens": mean}.

Runs in TRL's own environment:  python trl_steps.py MODEL PROMPTS STEPS
The settings are the run's: 8 prompts x 8 samples x 24 tokens, bf16 weights, no KL, two threads.
"""

import itertools
import json
import re
import sys
import tempfile
import time

import torch
from datasets import Dataset  # pyright: ignore[reportMissingImports]  # TRL's environment has it
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports]  # likewise


class StepClock(TrainerCallback):
    def __init__(self):
        self.ends = []

    def on_train_begin(self, *args, **kwargs):
        self.ends.append(time.monotonic())

    def on_step_end(self, *args, **kwargs):
        self.ends.append(time.monotonic())


def settings(folder: str, steps: int, num_samples: int, **own: object) -> GRPOConfig:
    """8 samples a prompt, bf16 weights, no KL, on the CPU. `own`: what differs by task."""
    return GRPOConfig(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=num_samples,
        generation_batch_size=num_samples,
        num_generations=8,
        learning_rate=2e-5,
        beta=0.0,
        bf16=True,
        use_cpu=True,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        model_init_kwargs={"dtype": "bfloat16"},
        **own,
    )


def main(model: str, prompts: str, steps: int) -> None:
    torch.set_num_threads(2)
    with open(prompts, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    dataset = Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": row["prompt"]}], "answer": row["answer"]}
            for row in rows
        ]
    )
    lengths = []

    def last_integer(completions, answer, completion_ids, **columns):
        lengths.extend(map(len, completion_ids))
        found = [re.findall(r"-?\d+", completion[0]["content"]) for completion in completions]
        return [float(bool(f) and f[-1] == a) for f, a in zip(found, answer, strict=True)]

    clock = StepClock()
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=last_integer,
            train_dataset=dataset,
            callbacks=[clock],
            args=settings(folder, steps, num_samples=64, max_completion_length=24, temperature=1.0),
        )
        trainer.train()
    seconds = [end - start for start, end in itertools.pairwise(clock.ends)]
    print(json.dumps({"seconds": seconds, "tokens": sum(lengths) / len(lengths)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
