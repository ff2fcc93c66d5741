#!/bin/sh
# Expected: accuracy_reward takes solutions as data sets have them, in bare LaTeX, as the example in its docstring does;
#   where it cannot read one, it returns None for the trainer to skip.
# What happens: in bare LaTeX it reads fractions of numbers, and else the one number that stands free at an end: 3\sqrt{13}
#   is 3, 6+9i is 6, (3, 4) is 4. The right answer gets 0, as a wrong one would; nothing is skipped and nothing is said.
#   Only what has no such number is None. Between dollar signs it reads all of them.
# Package: trl 1.16.0 with math-verify 0.9.0. Documentation: the docstring of trl.rewards.accuracy_reward.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
"${PYTHON:-python3}" -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet "math-verify[antlr4_13_2]==0.9.0" datasets==5.2.0 transformers==5.23.0
"$dir/venv/bin/pip" install --quiet --no-deps trl==1.16.0
HF_HOME="$dir" "$dir/venv/bin/python" - <<'END'
from importlib.metadata import version

from trl.rewards import accuracy_reward

SOLUTIONS = {
    r"\frac{1}{3}": 1.0,
    "1,024": 1.0,
    r"3\sqrt{13}": 0.0,
    "6+9i": 0.0,
    "2x+5": 0.0,
    "(3, 4)": 0.0,
    "1, -2": 0.0,
    r"1\frac{4}{5}": 0.0,
    r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}": 0.0,
    r"\sqrt{2}": None,
    r"(1, \frac{\pi}{2})": None,
}
print("trl", version("trl"), "math-verify", version("math-verify"))
for solution, of_bare in SOLUTIONS.items():
    answer = [{"role": "assistant", "content": rf"So the answer is \boxed{{{solution}}}."}]
    read: dict[str, list[str]] = {}
    bare, between_dollars = accuracy_reward([answer, answer], [solution, f"${solution}$"], log_extra=read.__setitem__)
    print(f"{solution}: {bare}, read as {read['gold_parsed'][0]}; between dollar signs {between_dollars}")
    assert (bare, between_dollars) == (of_bare, 1.0)
END
