#!/bin/sh
# Expected: a process group that nobody uses waits without waking, and the groups of a process share what waits.
# What happens: each Gloo group has a thread of its own that wakes a hundred times a second for as long as the group
#   lives, also for a single rank. megatron-core 0.16 makes 18 groups for one rank and a vLLM 0.30 core on a processor 13:
#   a process that does nothing wakes 1,800 times a second, and threads that compute in step wait for each other.
#   Groups that are given one device, by options that torch's own functions do not pass on, have one thread together.
# Package: torch 2.13.0 with the Gloo in it.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
"${PYTHON:-python3}" -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet torch==2.13.0 numpy
cat >"$dir/count.py" <<'END'
import sys
import time
from pathlib import Path

import torch.distributed as dist

NUM_GROUPS, SECONDS = 20, 3
store = dist.HashStore()


def wakeups() -> int:
    lines = [line for task in Path("/proc/self/task").iterdir() for line in (task / "status").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


if sys.argv[1] == "each":
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    groups = [dist.new_group([0]) for _ in range(NUM_GROUPS - 1)]
else:
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_default_device()]
    groups = [dist.ProcessGroupGloo(store, 0, 1, options) for _ in range(NUM_GROUPS)]
before = wakeups()
time.sleep(SECONDS)
print((wakeups() - before) // SECONDS)
END
python="$dir/venv/bin/python"
each=$("$python" "$dir/count.py" each)
shared=$("$python" "$dir/count.py" shared)
echo "torch 2.13.0: wakeups a second of 20 idle Gloo groups: $each; with one device for all: $shared"
[ "$each" -gt 1000 ] && [ "$shared" -lt 300 ]
