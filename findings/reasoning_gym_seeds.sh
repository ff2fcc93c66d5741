#!/bin/sh
# Expected: datasets of one task with the seeds 100 and 101 have other rows, as for training and validation; and a seed
#   fixes the rows.
# What happens: item i + 1 of a seed is item i of the next seed. So neighbouring seeds share all rows but one, and two
#   sets are apart only where their seeds are further apart than they have rows. The rows of some tasks depend on the
#   process besides: with another PYTHONHASHSEED, one seed makes other questions.
# Package: reasoning-gym 0.1.25.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
"${PYTHON:-python3}" -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet reasoning-gym==0.1.25
cat > "$dir/questions.py" <<'END'
import sys

import reasoning_gym


def questions(task: str, seed: int) -> list[str]:
    return [row["question"] for row in reasoning_gym.create_dataset(task, seed=seed, size=30)]


if __name__ == "__main__":
    print(*map(repr, questions(sys.argv[1], seed=100)), sep="\n")
END
cd "$dir"
venv/bin/python - <<'END'
import os
import subprocess
import sys
from importlib.metadata import version

from questions import questions


def in_process(task: str, hash_seed: int) -> list[str]:
    command = [sys.executable, "questions.py", task]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.splitlines()


print("reasoning-gym", version("reasoning-gym"))
for task in ("basic_arithmetic", "leg_counting", "countdown", "knights_knaves"):
    first, second = questions(task, 100), questions(task, 101)
    shared = sum(one == other for one, other in zip(first[1:], second, strict=False))
    print(f"{task}: {shared} of 29 rows of seed 101 are the next row of seed 100")
    assert shared == 29

for task, stays in (("leg_counting", True), ("polynomial_multiplication", False), ("isomorphic_strings", False)):
    same = sum(one == other for one, other in zip(in_process(task, 1), in_process(task, 2), strict=True))
    print(f"{task}, seed 100 in two processes: {same} of 30 questions are equal")
    assert (same == 30) == stays
END
