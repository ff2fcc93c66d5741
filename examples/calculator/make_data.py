"""Make train.jsonl and heldout.jsonl: questions of a product and a sum, such as "What is 7*41 + 61?".

    python examples/calculator/make_data.py

The questions are drawn with a fixed seed; the two files share none.
"""

import json
import random
from pathlib import Path

FOLDER = Path(__file__).parent
NUM_TRAIN, NUM_HELDOUT = 400, 40


def main() -> None:
    drawn = random.Random(1)
    triples: dict[tuple[int, int, int], None] = {}
    while len(triples) < NUM_TRAIN + NUM_HELDOUT:
        triples[drawn.randint(2, 9), drawn.randint(11, 99), drawn.randint(11, 99)] = None
    found = list(triples)
    write(FOLDER / "train.jsonl", found[:NUM_TRAIN])
    write(FOLDER / "heldout.jsonl", found[NUM_TRAIN:])


def write(path: Path, triples: list[tuple[int, int, int]]) -> None:
    rows = ({"prompt": f"What is {a}*{b} + {c}?", "answer": str(a * b + c)} for a, b, c in triples)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
