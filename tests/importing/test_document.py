"""docs/migrating.md is the tables."""

from __future__ import annotations

from pathlib import Path

from commands import importing as migrating
from commands.importing.document import markdown

DOCUMENT = Path(migrating.__file__).parents[2] / "docs" / "migrating.md"
WORDS = (
    "--data_path",
    "--model_path",
    "key=value",
    "NNODES",
    "NPUS_PER_NODE",
    "MASTER_ADDR",
    "CURRENT_IP",
    "SOCKET_IFNAME",
    "DEFAULT_YAML",
    "LD_PRELOAD",
    "VLLM_DP_SIZE",
    "--local_dir",
    "handler_name",
    "npu_deterministic",
    "free_cache_engine",
    "use_remove_padding",
    "ulysses_size",
    "recompute_granularity",
    "optimizer_offload",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "enforce_eager",
    "infer_tensor_parallel_size",
    "limit_images",
)
"""Of the guides' command lines, and the switches that they name."""


def test_the_document_is_the_tables() -> None:
    written = DOCUMENT.read_text(encoding="utf-8").splitlines()
    assert written == list(markdown()), "run: python -m commands.importing > docs/migrating.md"


def test_words_of_the_guides_have_a_row() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert [word for word in WORDS if word not in text] == []


def test_a_row_is_one_line_of_whole_cells() -> None:
    rows = [line for line in markdown() if line.startswith("| ")]
    assert all(len(row.strip("|").split(" | ")) in (2, 4, 5, 7) for row in rows)
