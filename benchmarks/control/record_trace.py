"""How long groups take on a real engine: `python -m benchmarks.control.record_trace MODEL PROMPTS`.

Writes `benchmarks/control/trace.json`. vLLM alone, on the CPU, is kept at a constant number of
groups: a new one begins when one ends. Groups that are under way when the time is up are waited
for, so that long ones are not left out. PROMPTS is a JSONL file with `prompt` in each row.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TRACE = Path(__file__).parent / "trace.json"
GROUPS_AT_A_TIME, SAMPLES, MAX_TOKENS = 8, 8, 1024
ISSUE_SECONDS = 360.0


async def record(model: Path, prompts: Iterator[str]) -> dict[str, Any]:
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    arguments = AsyncEngineArgs(
        model=str(model),
        max_model_len=MAX_TOKENS + 256,
        max_num_seqs=GROUPS_AT_A_TIME * SAMPLES,
        enforce_eager=True,
    )
    engine = AsyncLLM.from_engine_args(arguments)
    tokenizer: Any = engine.get_tokenizer()
    groups: list[dict[str, Any]] = []
    begin = time.monotonic()

    async def slot() -> None:
        while time.monotonic() - begin < ISSUE_SECONDS:
            number = len(groups)
            groups.append({})
            groups[number] = await _generate(engine, tokenizer, next(prompts), number)

    await asyncio.gather(*(slot() for _ in range(GROUPS_AT_A_TIME)))
    engine.shutdown()
    return {
        "what": f"{model.name}, {GROUPS_AT_A_TIME} groups of {SAMPLES} at a time on vLLM, temperature"
        f" 1, at most {MAX_TOKENS} tokens; seconds from issue to the last token, tokens of each"
        " completion; in the order of issue",
        "groups": groups,
    }


async def _generate(engine: Any, tokenizer: Any, prompt: str, number: int) -> dict[str, Any]:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    turns = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    params = SamplingParams(
        n=SAMPLES,
        temperature=1.0,
        max_tokens=MAX_TOKENS,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
    begin, tokens = time.monotonic(), {}
    async for output in engine.generate(text, params, str(number)):
        tokens |= {one.index: len(one.token_ids) for one in output.outputs}
    return {"seconds": round(time.monotonic() - begin, 3), "tokens": sorted(tokens.values())}


def _prompts(path: Path) -> Iterator[str]:
    """Again from the first one at the end."""
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return itertools.cycle([row["prompt"] for row in rows])


if __name__ == "__main__":
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    trace = asyncio.run(record(Path(sys.argv[1]), _prompts(Path(sys.argv[2]))))
    TRACE.write_text(json.dumps(trace) + "\n", encoding="utf-8")
    print(len(trace["groups"]), "groups")
