#!/bin/sh
# Expected: rows with tool calls are the same rows, whether they come from a list in memory or from a JSON Lines
#   file, and a Parquet file of them holds what the dataset shows.
# What happens: from a list, all calls get the keys of all others, filled with None: f(x=1) becomes f(x=1, y=None),
#   which a chat template shows to the policy as an argument. From a file, the keys that differ make the loader
#   choose the type Json, and the rows are as they were. Written to Parquet, those arguments are text: whoever reads
#   the file by pyarrow or pandas gets '{"x":1}' instead of a mapping, which many chat templates quote once more.
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
import pyarrow.parquet
from datasets import Dataset, load_dataset

calls = [{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {"y": "z"}}]
rows = [{"call": call} for call in calls]
with open("rows.jsonl", "w") as file:
    file.writelines(json.dumps(row) + "\n" for row in rows)

listed = Dataset.from_list(rows)
loaded = load_dataset("json", data_files="rows.jsonl", split="train")
loaded.to_parquet("rows.parquet")
again = load_dataset("parquet", data_files="rows.parquet", split="train")
arrow = pyarrow.parquet.read_table("rows.parquet").to_pylist()

print("datasets", datasets.__version__, "pyarrow", pyarrow.__version__)
print("from_list      ", listed[0]["call"])
print("load_dataset   ", loaded[0]["call"], loaded.features["call"]["arguments"])
print("its Parquet    ", again[0]["call"])
print("and by pyarrow ", arrow[0]["call"])
assert [row["call"]["arguments"] for row in listed] == [{"x": 1, "y": None}, {"x": None, "y": "z"}]
assert list(loaded) == list(again) == rows
assert arrow[0]["call"]["arguments"] == '{"x":1}'
END
