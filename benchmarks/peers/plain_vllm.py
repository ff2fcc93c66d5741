"""vLLM as it is, with a replica's arguments: `python -m benchmarks.peers.plain_vllm MODEL`.

Each line in is a JSON list of prompts' token ids; each line out its tokens a second.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.rollout import rollout_config, sampling_params
from services.rollout.vllm.settings import engine_arguments, inspect_models_here, set_environment
from trimaran.host.device import pick


def main() -> None:
    config = rollout_config(Path(sys.argv[1]))
    set_environment(config, on_host=True)
    inspect_models_here()
    from vllm import LLM

    ours = {"kv_transfer_config", "worker_extension_cls", "stream_interval", "enable_log_requests"}
    arguments = engine_arguments(config, pick("cpu"), None)
    plain: dict[str, Any] = {name: arguments[name] for name in arguments.keys() - ours}
    plain["load_format"] = "auto"
    llm = LLM(**plain)
    params = sampling_params()
    for line in sys.stdin:
        prompts: list[Any] = [{"prompt_token_ids": prompt} for prompt in json.loads(line)]
        start = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        count = sum(len(one.token_ids) for output in outputs for one in output.outputs)
        print(json.dumps(count / (time.perf_counter() - start)), flush=True)


if __name__ == "__main__":
    main()
