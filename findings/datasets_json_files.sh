#!/bin/sh
# Expected: two JSON Lines files that load one by one, and as one file behind each other, load together.
# What happens: each file gets its own type for a tool's arguments: a struct where all calls have the same keys,
#   Json where they differ. A list of both files raises if the uniform one comes first, and loads if it comes last.
#   Datasets made of them one by one cannot be concatenated in any order.
# Package: datasets 5.2.0 with pyarrow 26.0.1.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
"${PYTHON:-python3}" -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet datasets==5.2.0 pyarrow==26.0.1
cd "$dir"
HF_HOME="$dir" HF_HUB_OFFLINE=1 HF_DATASETS_DISABLE_PROGRESS_BARS=1 venv/bin/python - <<'END'
import json

import datasets
import pyarrow
from datasets import concatenate_datasets, load_dataset
from datasets.exceptions import DatasetGenerationError

uniform = [{"arguments": {"x": 1}}, {"arguments": {"x": 2}}]
mixed = [{"arguments": {"x": 3}}, {"arguments": {"y": "z"}}]
for name, rows in {"uniform": uniform, "mixed": mixed, "both": uniform + mixed}.items():
    with open(f"{name}.jsonl", "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def load(*names: str):
    return load_dataset("json", data_files=[f"{name}.jsonl" for name in names], split="train")


def attempt(words: str, make) -> bool:
    try:
        print(f"{words}: {len(make())} rows")
    except (DatasetGenerationError, ValueError) as error:
        cause = error.__cause__ or error
        print(f"{words}: {type(error).__name__}: {' '.join(str(cause).split())[:120]}")
        return False
    return True


print("datasets", datasets.__version__, "pyarrow", pyarrow.__version__)
for name in ("uniform", "mixed", "both"):
    print(name, "alone:", load(name).features["arguments"])
assert list(load("both")) == uniform + mixed
one, other = load("uniform"), load("mixed")
assert not attempt("files: uniform, mixed", lambda: load("uniform", "mixed"))
assert attempt("files: mixed, uniform", lambda: load("mixed", "uniform"))
assert not attempt("datasets: uniform, mixed", lambda: concatenate_datasets([one, other]))
assert not attempt("datasets: mixed, uniform", lambda: concatenate_datasets([other, one]))
END
