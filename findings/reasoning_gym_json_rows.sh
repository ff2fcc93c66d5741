#!/bin/sh
# Expected: a row that was written as JSON and read again scores its own answer with 1, as the row itself does.
# What happens: arc_agi and rearc compare the board that they read in the answer, a tuple of tuples, with the one in the
#   row's metadata. JSON has lists alone, and a list never equals a tuple. So each right answer scores 0.05, the value of
#   a wrong one of the right form. No error says so.
# Package: reasoning-gym 0.1.25.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
"${PYTHON:-python3}" -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet reasoning-gym==0.1.25
"$dir/venv/bin/python" - <<'END'
import json
from importlib.metadata import version

import reasoning_gym

print("reasoning-gym", version("reasoning-gym"))
for task, read_again in (("leg_counting", 1.0), ("arc_agi", 0.05), ("rearc", 0.05)):
    dataset = reasoning_gym.create_dataset(task, seed=100, size=5)
    rows = list(dataset)
    copies = [json.loads(json.dumps(row)) for row in rows]
    before = {dataset.score_answer(row["answer"], row) for row in rows}
    after = {dataset.score_answer(row["answer"], row) for row in copies}
    print(f"{task}: the rows' own answers score {before}, after JSON {after}")
    assert before == {1.0} and after == {read_again}
END
