#!/bin/sh
# Expected: a product of matrices on a processor leaves nothing behind but its result; what oneDNN keeps for shapes that
#   come again is bounded, as its cache of primitives is (1,024 by default).
# What happens: in bfloat16 on a processor with AMX, each number of rows that torch has not met costs some 5 ms and 1 MB
#   for kernels that stay. 100 batches of other lengths through four matrices of SmolLM2-135M's width and back grow the
#   process by a gigabyte, 600 by 2.6; batches of few lengths, or in float32, by tens of megabytes.
#   ONEDNN_PRIMITIVE_CACHE_CAPACITY=128 lowers that by less than half: the other kernels are kept beside that cache.
# Package: torch 2.13.0 with the oneDNN in it.
set -eu
grep -q amx_bf16 /proc/cpuinfo || {
  echo "this processor has no AMX: nothing to see" >&2
  exit 1
}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
"${PYTHON:-python3}" -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet torch==2.13.0 numpy
cat >"$dir/grow.py" <<'END'
import random
import sys
from pathlib import Path

import torch

torch.set_num_threads(1)
dtype, step = getattr(torch, sys.argv[1]), int(sys.argv[2])
weights = [torch.randn(*one, dtype=dtype) for one in ((576, 576), (3072, 576), (576, 1536), (960, 576))]


def resident() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(one.split()[1]) // 1024 for one in lines if one.startswith("VmRSS"))


def both_ways(rows: int) -> None:
    for weight in weights:
        x = torch.randn(rows, weight.shape[1], dtype=dtype)
        out = x @ weight.t()
        out @ weight, out.t() @ x


both_ways(1800)  # what tensors of the largest size take is no growth
start, choose = resident(), random.Random(1)
for _ in range(100):
    both_ways(choose.randrange(900, 1801, step))
print(resident() - start)
END
# Freed memory is kept for the next tensor in both: what grows are kernels alone.
export MALLOC_ARENA_MAX=1 MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=100000000000
python="$dir/venv/bin/python"
any=$("$python" "$dir/grow.py" bfloat16 1)
few=$("$python" "$dir/grow.py" bfloat16 300)
plain=$("$python" "$dir/grow.py" float32 1)
fewer=$(ONEDNN_PRIMITIVE_CACHE_CAPACITY=128 "$python" "$dir/grow.py" bfloat16 1)
echo "torch 2.13.0, MiB after 100 batches: bfloat16 $any, of four lengths alone $few, float32 $plain; 128 primitives $fewer"
[ "$any" -gt 600 ] && [ "$few" -lt 200 ] && [ "$plain" -lt 200 ] && [ "$fewer" -gt 300 ]
