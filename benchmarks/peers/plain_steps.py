"""GRPO in one file and one process with plain transformers; prints {"seconds": [...], "tokens": mean}.

python plain_steps.py MODEL PROMPTS STEPS

What a competent user writes in an afternoon: batched `generate`, padded batches, logits for
completion positions only, bf16 compute over fp32 weights, fused AdamW.
"""

import json
import random
import re
import sys
import time

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

GROUPS, GROUP_SIZE, MAX_TOKENS, MICRO_BATCH = 8, 8, 24, 32


def main(path: str, prompts: str, steps: int) -> None:
    torch.set_num_threads(2)
    torch.manual_seed(1)
    chooser = random.Random(1)
    with open(prompts, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    trained = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    sampler = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).eval()
    optimizer = torch.optim.AdamW(
        trained.parameters(), lr=2e-5, betas=(0.9, 0.95), weight_decay=0, fused=True
    )
    seconds, lengths = [], []
    for _ in range(steps):
        start = time.monotonic()
        chosen = chooser.sample(rows, GROUPS)
        sequences, prompt_length = sample(sampler, tokenizer, chosen)
        completions = sequences[:, prompt_length:]
        mask = completion_mask(completions, tokenizer.eos_token_id)
        texts = tokenizer.batch_decode(completions, skip_special_tokens=True)
        answers = [row["answer"] for row in chosen for _ in range(GROUP_SIZE)]
        rewards = torch.tensor([score(t, a) for t, a in zip(texts, answers, strict=True)])
        rewards = rewards.view(GROUPS, GROUP_SIZE)
        advantages = (rewards - rewards.mean(1, keepdim=True)) / (
            rewards.std(1, keepdim=True) + 1e-4
        )
        attention = (sequences != tokenizer.pad_token_id).long()
        attention[:, prompt_length:] = mask
        for part in torch.arange(len(sequences)).split(MICRO_BATCH):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = trained(
                    input_ids=sequences[part],
                    attention_mask=attention[part],
                    position_ids=(attention[part].cumsum(1) - 1).clamp(min=0),
                    logits_to_keep=completions.shape[1] + 1,
                ).logits[:, :-1]
            logprobs = -F.cross_entropy(
                logits.float().flatten(0, 1), completions[part].flatten(), reduction="none"
            ).view(len(part), -1)
            loss = -(logprobs * advantages.view(-1)[part, None] * mask[part]).sum() / mask.sum()
            loss.backward()
        torch.nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for copy, weight in zip(sampler.parameters(), trained.parameters(), strict=True):
                copy.copy_(weight)
        seconds.append(time.monotonic() - start)
        lengths.append(mask.sum().item() / len(mask))
    print(json.dumps({"seconds": seconds, "tokens": sum(lengths) / len(lengths)}))


def sample(model, tokenizer, rows):
    """Token ids (GROUPS * GROUP_SIZE, prompt + completion), and the padded prompt length."""
    chats = [
        [{"role": "user", "content": row["prompt"]}] for row in rows for _ in range(GROUP_SIZE)
    ]
    texts = tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
    batch = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    with torch.no_grad():
        sequences = model.generate(
            **batch, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=MAX_TOKENS
        )
    return sequences, batch["input_ids"].shape[1]


def completion_mask(completions, end_token):
    """1 up to and with the first end token, 0 behind it."""
    ended = (completions == end_token).cumsum(1)
    return ((ended - (completions == end_token).long()) == 0).long()


def score(text, answer):
    found = re.findall(r"-?\d+", text)
    return float(bool(found) and found[-1] == answer)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
