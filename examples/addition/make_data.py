"""Make train.jsonl and heldout.jsonl: the 100 one-digit additions, split 80 / 20.

    python examples/addition/make_data.py

The split is fixed, so that runs can be compared; the two files share no operand pair.
"""

import json
from pathlib import Path

FOLDER = Path(__file__).parent


def main() -> None:
    pairs = [(a, b) for a in range(10) for b in range(10)]
    write(FOLDER / "heldout.jsonl", [pair for pair in pairs if is_heldout(*pair)])
    write(FOLDER / "train.jsonl", [pair for pair in pairs if not is_heldout(*pair)])


def is_heldout(a: int, b: int) -> bool:
    """20 pairs; each digit stands twice on either side, so neither file is the easier one."""
    return (b - 3 * a) % 5 == 1


def write(path: Path, pairs: list[tuple[int, int]]) -> None:
    rows = ({"prompt": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in pairs)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
