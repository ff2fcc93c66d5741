"""TRL's GRPOTrainer with `tools`; prints {"seconds": [per step], "turns": mean of an episode, "calls": the same}.

Runs in TRL's own environment:  python trl_tools.py MODEL ROWS STEPS MAX_TURNS MAX_TOKENS
The settings are the run's: 2 prompts x 8 episodes, bf16 weights, no KL, two threads.
"""

import itertools
import json
import re
import statistics
import sys
import tempfile

import torch
from datasets import Dataset  # pyright: ignore[reportMissingImports]  # TRL's environment has it
from multiply import multiply
from transformers import AutoTokenizer
from trl import GRPOTrainer  # pyright: ignore[reportMissingImports]  # likewise
from trl.chat_template_utils import (  # pyright: ignore[reportMissingImports]  # likewise
    qwen3_template,
)
from trl_steps import StepClock, settings


def main(model: str, rows: str, steps: int, max_turns: int, max_tokens: int) -> None:
    torch.set_num_threads(2)
    with open(rows, encoding="utf-8") as file:
        dataset = Dataset.from_list([json.loads(line) for line in file])
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.response_template = qwen3_template
    turns, calls = [], []

    def last_integer(completions, answer, **columns):
        turns.extend(sum(m["role"] == "assistant" for m in said) for said in completions)
        calls.extend(sum(m["role"] == "tool" for m in said) for said in completions)
        found = [re.findall(r"-?\d+", said[-1]["content"] or "") for said in completions]
        return [float(bool(f) and f[-1] == a) for f, a in zip(found, answer, strict=True)]

    clock = StepClock()
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model,
            processing_class=tokenizer,
            reward_funcs=last_integer,
            train_dataset=dataset,
            tools=[multiply],
            callbacks=[clock],
            args=settings(
                folder,
                steps,
                num_samples=16,
                max_completion_length=max_tokens,
                max_tool_calling_iterations=max_turns - 1,
                temperature=0.6,
            ),
        )
        trainer.train()
    seconds = [end - start for start, end in itertools.pairwise(clock.ends)]
    means = {"turns": statistics.fmean(turns), "calls": statistics.fmean(calls)}
    print(json.dumps({"seconds": seconds, **means}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
