"""The words of a script's training command, without running anything."""

from __future__ import annotations

import pytest

from trimaran.errors import InputError
from trimaran.migrating.shell import find_command

SCRIPT = r"""
set -x
ENGINE=${1:-vllm}
# a comment's $(command) counts for nothing
export HCCL_CONNECT_TIMEOUT=1500
project='geo 3k'
length=$((1024 * 2))
HOME_DATA=$HOME/data   # behind an assignment
python3 prepare.py --out $(mktemp)
PROMPT="think
 first: \boxed{}"
python3 -m verl.trainer.main_ppo --config-name='ppo_megatron_trainer.yaml'\
    data.train_files=$HOME_DATA/train.parquet \
    data.max_response_length=$length \
    +data.system_prompt="${PROMPT}" \ 
    trainer.logger='["console","wandb"]' \
    trainer.project_name="${project}_${KIND:-full}" \
    actor_rollout_ref.rollout.name=$ENGINE $@ 2>&1 | tee log
echo actor_rollout_ref.rollout.n=9
"""


def test_variables_quotes_and_continued_lines() -> None:
    words, assumed = find_command(SCRIPT, "verl.", {"HOME": "/home/me"})
    assert words == [
        "--config-name=ppo_megatron_trainer.yaml",
        "data.train_files=/home/me/data/train.parquet",
        "data.max_response_length=2048",
        "+data.system_prompt=think\n first: \\boxed{}",
        'trainer.logger=["console","wandb"]',
        "trainer.project_name=geo 3k_full",
        "actor_rollout_ref.rollout.name=vllm",
    ]
    assert assumed == []


ARRAYS = """
N=${N:-5}
DATA=(
    data.train_batch_size=512   # prompts
    algorithm.adv_estimator=grpo
)
ROLLOUT=(actor_rollout_ref.rollout.n=${N})
EXTRA=()
DATA+=(data.shuffle=False)
LAUNCH=(python3)
if [ "$DEVICE" = npu ]; then
    LAUNCH=(uv run python3)
    ROLLOUT+=(actor_rollout_ref.rollout.n=9)
fi
"${LAUNCH[@]}" -m verl.trainer.main_ppo "${DATA[@]}" "${ROLLOUT[@]}" "${EXTRA[@]}" "$@"
"""


def test_arrays_and_what_a_condition_would_change() -> None:
    words, assumed = find_command(ARRAYS, "verl.", {"N": "8"})
    assert words == [
        "data.train_batch_size=512",
        "algorithm.adv_estimator=grpo",
        "data.shuffle=False",
        "actor_rollout_ref.rollout.n=8",
    ]
    assert len(assumed) == 2
    assert assumed[1] == (
        "ROLLOUT is set again by a condition of the script: taken as it was before,"
        " actor_rollout_ref.rollout.n=8"
    )


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("A=$(date)", "the output of a command is not known here"),
        ("A=`date`", "the output of a command is not known here"),
        ("for x in 1 2; do A=$x; done", "A is set by a condition of the script"),
        ("", "the script takes A from its environment"),
        ("A=${B%.yaml}", "more of the shell's language"),
        ("A=$((2 ** 3))", "more than sums and products"),
        ("A=$1", r"\$1 of the script is not known here"),
        ("A=${2}", r"\$2 of the script is not known here"),
        ("[ $B = 1 ] && A=2", "A is set by a condition of the script"),
        ("test -f B &&\n { C=1; A=2; }", "A is set by a condition of the script"),
        ("cat <<EOF > x\nA=1\nEOF", "the script takes A from its environment"),
        ("cat <<-'EOF'\nA=1\n\tEOF", "the script takes A from its environment"),
    ],
)
def test_what_is_not_known_is_an_error_where_the_command_needs_it(line: str, reason: str) -> None:
    needed = f"{line}\npython -m verl.trainer.main a.b=$A"
    with pytest.raises(InputError, match=reason):
        find_command(needed, "verl.", {})
    assert find_command(f"{line}\npython -m verl.trainer.main a.b=1", "verl.", {})[0] == ["a.b=1"]


def test_the_environment_goes_before_a_condition() -> None:
    script = 'path=""\nfor p in $*; do path=`echo ${p#*=}`; done\npython3 -m verl.trainer.main_ppo d.f=$path/x'
    assert find_command(script, "verl.", {"path": "/data"})[0] == ["d.f=/data/x"]
    with pytest.raises(InputError, match="path is set by a condition"):
        find_command(script, "verl.", {})


def test_a_script_without_a_training_says_so() -> None:
    with pytest.raises(InputError, match=r"holds no command with `-m verl\."):
        find_command("python cli/train_grpo.py --config-name x", "verl.", {})


@pytest.mark.parametrize(
    "text", ["(", "A=(", "${", "$((", "'", '"$(', "`", "\\", "a=$", "if", "A=${B:-"]
)
def test_a_torn_script_ends(text: str) -> None:
    with pytest.raises(InputError):
        find_command(text, "verl.", {})


@pytest.mark.parametrize("line", ["[ $B = 1 ] && A=2", "test $B && A=2 || A=3", "cd x ||\nA=2"])
def test_what_stands_behind_a_chain_is_a_condition(line: str) -> None:
    words, assumed = find_command(f"A=1; {line}\nC=5\npython -m verl.x a=$A c=$C", "verl.", {})
    assert words == ["a=1", "c=5"]
    assert assumed and assumed[0].startswith("A is set again by a condition of the script")


@pytest.mark.parametrize(
    "text",
    [
        "if [ $A ]; then\npython -m verl.x a=1\nelse\npython -m verl.x a=2\nfi",
        "python -m verl.x a=1\npython -m verl.x a=2",
    ],
)
def test_several_trainings_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="holds 2 commands"):
        find_command(text, "verl.", {})


def test_redirections_are_no_words_and_no_ends() -> None:
    text = "python -m verl.x a=1 2>&1 b=2 >>log 2> >(tee e) c=3 &>all < in d=4 | tee e=5"
    assert find_command(text, "verl.", {})[0] == ["a=1", "b=2", "c=3", "d=4"]


def test_arithmetic_is_the_shells() -> None:
    text = "a=3 b=5 c=2 n=-7\npython -m verl.x a=$(((a + b) / c)) b=$((n / 2)) c=$((2*(1+(b-1))))"
    assert find_command(text, "verl.", {})[0] == ["a=4", "b=-3", "c=10"]
