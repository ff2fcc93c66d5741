"""The words of a launch script's command: those of bash, or the script is refused. The import runs nothing."""

from __future__ import annotations

import os
import subprocess

import pytest

from commands.importing.script import find_command
from trimaran.errors import InputError

SCRIPT = r"""
set -x
ENGINE=${1:-vllm}
# a comment's $(command) counts for nothing
export HCCL_CONNECT_TIMEOUT=1500
project='geo 3k'
HOME_DATA=$HOME/data   # behind an assignment
python3 prepare.py --out $(mktemp)
SYSTEM="think
 first: \boxed{}"
python3 -m verl.trainer.main_ppo --config-name='ppo_megatron_trainer.yaml'\
    data.train_files=$HOME_DATA/train.parquet \
    +data.system="${SYSTEM}" \
    trainer.logger='["console","wandb"]' \
    trainer.project_name="${project}_${KIND:-full}" \
    actor_rollout_ref.rollout.name=$ENGINE $@ 2>&1 | tee log
echo actor_rollout_ref.rollout.n=9
"""


def test_names_quotes_comments_and_continued_lines() -> None:
    assert find_command(SCRIPT, "verl.", {"HOME": "/home/me"}) == [
        "--config-name=ppo_megatron_trainer.yaml",
        "data.train_files=/home/me/data/train.parquet",
        "+data.system=think\n first: \\boxed{}",
        'trainer.logger=["console","wandb"]',
        "trainer.project_name=geo 3k_full",
        "actor_rollout_ref.rollout.name=vllm",
    ]


TRAINED = """python3() { shift 2; printf '%s\\0' "$@"; }
"""
READ = (
    "A=1\nA=2 @ a=$A",
    "A=1 B=$A\n@ a=$A b=$B",
    "# no \\\nA=2\n@ a=${A:-1}",
    "A=1 # no \\\nB=2\n@ a=$A b=${B:-0}",
    "@ a=1 \\\n# b=2 \\\nc=3",
    "@ a=1,\\\n2 \"b=1,\\\n2\" c=3\\\n d=4",
    "@ a=x\\\\\nA=2",
    "A=' a=1  b=2 '\n@ $A 'c=$A' d=\"$A\"",
    "@ a=1 2>&1 b=2 c=3 < /dev/null | cat",
)  # fmt: skip
REFUSED = (
    "A=1\nA=2 true\n@ a=$A",
    "A=a; A+=b\n@ \"x=$A\"",
    "A=(a=1 b=2)\n@ $A",
    "A=(a=1)\n@ \"${A[@]}\"",
    "A=1; f() { A=5; }\nf\n@ a=$A",
    "A=3; run() {\n@ a=$A\n}\nA=4\nrun",
    "A=1; (A=2; B=3)\n@ a=$A b=${B:-0}",
    "A=1; A=2 | cat\n@ a=$A",
    ": ${A:=5}\n@ a=${A:-3}",
    "cat > /dev/null <<EOF\nA=3\nEOF\n@ a=${A:-1}",
    "A=a{1,2}\n@ a=$A",
    "A=1; declare -i A=5\n@ a=$A",
    "A=1; ((A++))\n@ a=$A",
    "A=1; unset A\n@ a=${A:-3}",
    "A=1; for A in 2; do :; done\n@ a=$A",
    "if true; then A=2; fi\n@ a=${A:-1}",
    "A=1; true && A=2\n@ a=$A",
    "case xy in 'x*') B=1;; *) B=2;; esac\n@ b=$B",
    "A=$(echo 5)\n@ a=$A",
    "@ a=$((2 * 3))",
    "@ a=$'x\\ny'",
    "set -- a=1 b=2\n@ \"$@\"",
    "@ a={1,2}",
    "A=1; source <(echo A=9)\n@ a=$A",
    "A=1; printf -v A %s 2\n@ a=$A",
    "@ a=1\n@ a=2",
    "echo",
)  # fmt: skip


def script_of(text: str) -> str:
    return text.replace("@ ", "python3 -m verl.x ")


@pytest.mark.parametrize("text", READ)
def test_words_are_those_of_bash(text: str) -> None:
    environment = {"PATH": os.environ["PATH"]}
    shown = subprocess.run(
        ["bash", "--norc", "-c", TRAINED + script_of(text)],
        capture_output=True,
        env=environment,
        timeout=60,
    )
    words = shown.stdout.decode().split("\0")[:-1]
    assert words and find_command(script_of(text), "verl.", environment) == words


@pytest.mark.parametrize("text", REFUSED)
def test_what_may_be_other_words_in_bash_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="import the (command's own )?words"):
        find_command(script_of(text), "verl.", {})


def test_a_name_that_a_loop_may_set_has_its_value_from_the_environment() -> None:
    text = 'A=""\nfor p in $*; do A=`echo ${p#*=}`; done\npython3 -m verl.x d.f=$A/x'
    assert find_command(text, "verl.", {"A": "/data"}) == ["d.f=/data/x"]
    with pytest.raises(InputError, match="A is not set by plain assignments"):
        find_command(text, "verl.", {})


@pytest.mark.parametrize("text", ["(", "A=(", "${", "$((", "'", '"$(', "`", "\\", "if", "A=${B:-"])
def test_a_torn_script_ends(text: str) -> None:
    with pytest.raises(InputError):
        find_command(text, "verl.", {})
