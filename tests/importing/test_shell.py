"""The words of a script's training command, without running anything."""

from __future__ import annotations

import subprocess
from datetime import datetime

import pytest

from commands.importing.shell import find_command
from trimaran.errors import InputError

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
    [slip] = assumed
    assert slip.startswith("a blank stands behind a backslash at the end of a line")


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
        ("[ -f B ] && A=2", "A is set by a condition of the script"),
        ("[ $B = 1 ] && A=2", "A is set by a condition of the script"),
        ("case $B in 1) A=1 ;; esac", "A is set by a condition of the script"),
        ("B=$(nproc)\n[ $B -gt 1 ] && A=2", "A is set by a condition of the script"),
        ("B=$(nproc)\nA=x$B", "B: the output of a command is not known here"),
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


DEVICES = """
DEVICE=${DEVICE:-$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)}
TP=${TP:-}
MACHINE=${MACHINE:-}
NAME=${NAME:-run_${DEVICE}${MACHINE:+_$MACHINE}_$(date +%Y)}
EXTRA=()
case "${DEVICE}" in
    gpu | cuda)
        tp=${TP:-2}
        case "${MACHINE}" in
            gb*) EXTRA+=(m=1) ;;
            *)
                EXTRA+=(m=2)  # any ) other
                ;;
        esac
        ;;
    npu)
        tp=${TP:-4}
        export HCCL_CONNECT_TIMEOUT=1500
        ;;
    *)
        echo "what is ${DEVICE}?" >&2
        exit 1
esac
[ "$tp" -gt 2 ] && vpp=${tp} || vpp=null
LAUNCH=(python3)
if [ "${USE_UV:-1}" != 0 ] && [ "${DEVICE:-gpu}" = gpu ] && { [ "$tp" = 2 ] || [ "$tp" = 1 ]; }; then
    LAUNCH=(uv run python3)
    EXTRA+=(ray=uv)
elif ! [[ $DEVICE != n* || -z "$tp" ]]; then
    EXTRA=(npu=1)
else
    EXTRA+=(neither=1)
fi
"${LAUNCH[@]}" -m verl.x tp=$tp vpp=$vpp name=$NAME "${EXTRA[@]}" "${@:2}"
"""


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"DEVICE": "gpu"}, "tp=2 vpp=null name=run_gpu_{} m=2 ray=uv"),
        ({"DEVICE": "gpu", "USE_UV": "0"}, "tp=2 vpp=null name=run_gpu_{} m=2 neither=1"),
        (
            {"DEVICE": "cuda", "TP": "8", "MACHINE": "gb200"},
            "tp=8 vpp=8 name=run_cuda_gb200_{} m=1 neither=1",
        ),
        ({"DEVICE": "npu"}, "tp=4 vpp=4 name=run_npu_{} npu=1"),
        ({"DEVICE": "npu", "TP": "1", "NAME": "n"}, "tp=1 vpp=null name=n npu=1"),
    ],
)
def test_branches_over_what_is_known_are_those_of_the_shell(
    environment: dict[str, str], words: str
) -> None:
    found, assumed = find_command(DEVICES, "verl.", environment)
    assert (" ".join(found), assumed) == (words.format(datetime.now().year), [])
    real = DEVICES.replace('"${LAUNCH[@]}" -m verl.x', "echo")
    told = subprocess.run(
        ["bash", "-c", real, "x", "one"], capture_output=True, text=True, env=environment
    )
    assert told.stdout.split() == found


def test_without_the_device_the_script_says_what_to_set() -> None:
    with pytest.raises(InputError) as raised:
        find_command(DEVICES, "verl.", {})
    lines = str(raised.value).splitlines()
    assert "DEVICE: the output of a command is not known here; set it in the environment" in str(
        lines
    )
    assert any(line.startswith("tp is set by a condition of the script") for line in lines)


def test_a_branch_that_is_not_taken_changes_nothing_and_holds_no_training() -> None:
    text = """
A=1; B=text
if [ $A -eq 2 ]; then A=3; python -m verl.x a=0; fi
[ "$B" = text ] || { A=4; B=; }
[[ $B == t*t && $A -le 1 ]] && C=5
python -m verl.x a=$A b=$B c=$C
"""
    assert find_command(text, "verl.", {}) == (["a=1", "b=text", "c=5"], [])


def test_a_text_of_several_words_is_several_words_without_quotes() -> None:
    text = 'E=" \n  a=1\n  b=x  "\npython -m verl.x $E c="$F" d=$G.yaml'
    words = find_command(text, "verl.", {"F": "1 2", "G": "3 4"})[0]
    assert words == ["a=1", "b=x", "c=1 2", "d=3", "4.yaml"]
