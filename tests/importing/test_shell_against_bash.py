"""Scripts that bash runs, and what is read of them: the same words, or it is said what is not known."""

from __future__ import annotations

import os
import subprocess

import pytest

from commands.importing.shell import find_command
from trimaran.errors import InputError

TRAINED = """python3() { shift 2; printf '%s\\0' "$@"; }
"""
SAME = (
    "A=1 true; @ a=${A:-3}",
    "A=1\nA=2 true\n@ a=$A",
    "A=1\nA=2 @ a=$A",
    "A=1 B=$A\n@ a=$A b=$B",
    "declare A=5\n@ a=${A:-3}",
    "A=1; readonly A=5\n@ a=$A",
    "A=a; A+=b\n@ \"x=$A\"",
    "A='a=1'; A+=' b=2'\n@ $A",
    "A=(a=1); A+=(b=2)\n@ \"${A[@]}\"",
    "A=; @ a=x${A-x} b=x${A:-x} c=x${A+y} d=x${A:+y}",
    ": ${A:=5}\n@ a=${A:-3} b=${A:?no}",
    "A=1; f() { A=5; }\n@ a=$A",
    "A=1; f() { A=5; }\nf\n@ a=$A",
    "A=1; function f { A=5; }\nf && A=${A}0\n@ a=$A",
    "A=1; function f() {\n local A=5\n B=$A\n}\nf\n@ a=$A b=$B",
    "A=3; run() {\n@ a=$A\n}\nA=4\nrun \"$@\" 2>&1",
    "A=1; f() { A=2; g; }; g() { A=${A}3; }\nif f; then :; fi\n@ a=$A",
    "A=1; (A=2; B=3)\n@ a=$A b=${B:-0}",
    "A=1; A=2 | cat\n@ a=$A",
    "A=1; A=2 &\n@ a=$A",
    "# no \\\nA=2\n@ a=${A:-1}",
    "A=1 # no \\\nB=2\n@ a=$A b=${B:-0}",
    "@ a=1 \\\n# b=2 \\\nc=3",
    "@ a=1,\\\n2 \"b=1,\\\n2\" c=3\\\n d=4",
    "@ a=x\\\\\nA=2",
    "A=(a=1 b=2)\n@ $A",
    "A=(a=1 b=2)\n@ \"${A[*]}\" x\"${A[@]}\"y",
    "A=xy; B=\"${A}\"'z'\n@ b=$B c=$\"xy\"",
    "cat > /dev/null <<EOF\n  EOF\nA=3\nEOF\n@ a=${A:-1}",
    "A=a{1,2}\n@ a=$A",
)  # fmt: skip
TOLD = (
    "A=1; export -n A=5\n@ a=$A",
    "A=1; declare -i A=5\n@ a=$A",
    "A=1; let A=5\n@ a=$A",
    "A=1; ((A=5))\n@ a=$A",
    "A=1; ((A++))\n@ a=$A",
    "A=1; if ((A==5)); then B=2; else B=3; fi\n@ b=$B",
    "A=1; unset A\n@ a=${A:-3}",
    "A=1; read A <<< 5\n@ a=$A",
    "read A <<< 5\n@ a=${A:-3}",
    "A=1; for A in 2; do @ a=$A\ndone",
    "for ((A=2; A<3; A++)); do @ a=${A:-7}\ndone",
    "A=1; select A in 2; do break; done < /dev/null > /dev/null\n@ a=$A",
    "@ a=$'x\\ny'",
    "A=(a=1 b=2); A[1]=c=3\n@ \"${A[@]}\"",
    "P=xy; case xy in $P) B=1;; *) B=2;; esac\n@ b=$B",
    "case xy in 'x*') B=1;; *) B=2;; esac\n@ b=$B",
    "A=$(which nonesuch) && D=npu || D=gpu\n@ d=$D",
    "if A=$(which nonesuch); then D=npu; else D=gpu; fi\n@ d=$D",
    "set -- a=1 b=2\n@ \"$@\"",
    "@ a={1,2}",
    "A=1; source <(echo A=9)\n@ a=$A",
    "A=1; eval A=2\n@ a=$A",
    "A=1; printf -v A %s 2\n@ a=$A",
    "A=1; mapfile -t A <<< 2\n@ a=$A",
    "@ a=1 \\ \n b=2",
)  # fmt: skip


def script_of(text: str) -> str:
    return text.replace("@ ", "python3 -m verl.x ")


@pytest.mark.parametrize("text", SAME)
def test_words_are_those_of_bash(text: str) -> None:
    environment = {"PATH": os.environ["PATH"]}
    told = subprocess.run(
        ["bash", "--norc", "-c", TRAINED + script_of(text)],
        capture_output=True,
        env=environment,
    )
    words = told.stdout.decode().split("\0")[:-1]
    assert find_command(script_of(text), "verl.", environment) == (words, [])


@pytest.mark.parametrize("text", TOLD)
def test_what_bash_does_otherwise_is_told(text: str) -> None:
    try:
        _, assumed = find_command(script_of(text), "verl.", {})
    except InputError as error:
        assert "import the `.hydra/config.yaml`" in str(error)
    else:
        assert assumed


def test_a_name_that_the_script_sets_in_a_way_that_is_not_read_has_its_value_from_the_environment() -> (
    None
):
    text = script_of("A=1; read A < file\n@ a=$A")
    assert find_command(text, "verl.", {"A": "7"}) == (["a=7"], [])


def test_a_function_that_calls_itself_ends() -> None:
    text = script_of("f() {\n @ a=1\n f; f; }\nf")
    assert find_command(text, "verl.", {}) == (["a=1"], [])
