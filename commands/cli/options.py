"""The command line of `trimaran`: commands, options and their help."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from commands.cli.adding import Add, add_command, add_group, add_json, add_overrides
from commands.cli.files.data_options import add_data_commands
from commands.cli.manage.run_options import add_run_commands
from commands.cli.serve.trust_options import add_trust_options
from trimaran.errors import did_you_mean

KINDS = (
    *("controller", "reward", "environment"),
    *("weight-sync", "rollout", "follower", "trainer"),
)

HEALTH_KINDS = ("manager", *KINDS, "reward-plugin", "environment-plugin")

MEGATRON = "ppo_megatron_trainer"

TRAIN_EXAMPLES = """\
examples:
  trimaran train examples/addition/run.yaml
  trimaran train examples/addition/run.yaml run.seed=2 run.max_lag=1
  trimaran train examples/addition/run.yaml 'algorithm.loss={type: gspo}'      a section as a value takes the place of the whole one
  trimaran train --resume runs/addition-20260101-120000
  trimaran train --resume runs/addition-20260101-120000 run.steps=60    for longer
  trimaran train --resume runs/addition-20260101-120000 trainer.tensor_parallel=2    another layout
"""

WEIGHTS_EXAMPLES = """\
RUN is a run's folder or its id; without one, or as `latest`, it is the run in runs/ that was started
last.
examples:
  trimaran weights list                         committed versions, newest first
  trimaran weights show                         the live version: who holds it, what was read back
  trimaran weights show runs/addition-20260101-120000 0.12
  trimaran weights verify                       reads back all that every replica has loaded, now
  trimaran weights verify rollout-1             of the newest run; RUN/rollout-1 of another
exit codes: 1 when a proof is bad or a replica has not loaded the live version, 2 for bad input
"""

TOKEN_EXAMPLES = """\
The token goes to stdout and is shown once; the manager's file holds only its SHA-256.
example:
  umask 077; trimaran token new --owner team-a --role submitter --name anna > anna.token
"""

MODEL_EXAMPLES = """\
It prints what a run needs: model.source, and the digest of all files as model.digest. Where a bucket
answers, and for whom, stands in AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and so on.
example:
  trimaran model push models/SmolLM2-135M-Instruct s3://models/SmolLM2-135M-Instruct
"""

HEALTH_EXAMPLES = """\
A process that a container engine starts notes in the file TRIMARAN_HEALTH_FILE who it is and where it
listens; a service that waits for a run or loads its model notes until when. That is looked up here.
KIND is manager, controller, reward, environment, weight-sync, rollout, trainer,
reward-plugin or environment-plugin.
examples:
  trimaran health                                    whatever this container serves
  trimaran health rollout                            and it has to be a replica
  trimaran health reward --address 127.0.0.1:7001    without a note
  trimaran health manager --address http://127.0.0.1:7980/healthz
exit codes: 0 when it serves, or starts in good time; 1 when it does not; 2 where nothing is noted
"""

DOCTOR_EXAMPLES = """\
Each finding says what is wrong, why it matters and how to fix it; docs/doctor.md lists them all.
examples:
  trimaran doctor                                        this host
  trimaran doctor run.yaml --store redis://10.0.0.9      and what this run needs of it
  trimaran doctor --listen 10.0.0.2:7990 --token-file F \\
      --tls-cert service.crt --tls-key service.key --tls-ca ca.crt  on every other host
  trimaran doctor run.yaml --host 10.0.0.2:7990 --host 10.0.0.3:7990 --token-file F \\
      --tls-cert service.crt --tls-key service.key --tls-ca ca.crt  then on one of them
exit codes: 1 when there is an error among the findings, 2 for bad input
"""

PLAN_EXAMPLES = """\
Parameters, gradients, optimizer, activations, logits, host copies, keys and values, and the largest
micro-batch that fits; docs/parallelism.md says what is exact and what is estimated.
examples:
  trimaran plan run.yaml
  trimaran plan run.yaml trainer.tensor_parallel=4 --device-memory 80
exit codes: 0 where all of it fits or the room is not known, 2 where it does not or for bad input
"""

CONVERT_EXAMPLES = """\
One process, one parameter in memory at a time. The weight root that it prints is the same before and
after, where no number was rounded. docs/operations.md says what for.
examples:
  trimaran convert latest model                                  the newest checkpoint of the newest run in runs/
  trimaran convert runs/first/checkpoints/step-00100 model --dtype bfloat16
  trimaran convert models/Qwen2.5-7B start --tensor-parallel 4 --pipeline-parallel 2
  trimaran convert runs/first/checkpoints/step-00100 other --to checkpoint --tensor-parallel 8
  trimaran convert latest megatron --to torch_dist               for Megatron-LM: --load megatron, any layout
  trimaran convert megatron model --model models/Qwen2.5-7B      and back
exit codes: 0 once all of it is there, 2 for bad input, 1 where the disk has no room
"""

IMPORT_EXAMPLES = """\
FILE is a YAML file. Words behind it, or alone, set their keys; ~key takes one away. docs/migrating.md says what
becomes of them.
A launch script of theirs imports itself once `trimaran import verl` stands there in place of
`python3 -m verl.trainer.main_ppo`.
Of MindSpeed-RL's files of configs/datasets it prints the `trimaran data prepare` that does the same.
examples:
  trimaran import easyr1 examples/config.yaml data.train_files=geo3k.parquet trainer.max_steps=120 -o run.yaml
  trimaran import verl algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8 -o run.yaml
  sed 's/python3 -m verl.trainer.main_ppo/trimaran import verl/' run_qwen2-7b.sh | bash -s -- -o run.yaml
  trimaran import mindspeed-rl configs/grpo_qwen25_7b_A3.yaml megatron_training.data_path=math17k.parquet -o run.yaml
exit codes: 0 once it is written, 2 where a key is refused or unknown, and nothing is written
"""

UP_EXAMPLES = """\
examples:
  trimaran up                                        this machine, on loopback
  trimaran up --folder /data/runs --config manager.yaml limits.running=2
SIGTERM and SIGINT end it; the runs go on, and the next `trimaran up` finds them again
exit codes: 0 after a signal, 2 for bad input or where another manager has the store
"""

VIEW_EXAMPLES = """\
Runs that go on, have ended or were killed; new ones appear. It writes nothing, and disturbs no run.
examples:
  trimaran view                                      every run in runs/
  trimaran view runs/addition-20260101-120000        one, or `latest`
  ssh -L 7990:127.0.0.1:7990 host trimaran view runs    those of another machine, at 127.0.0.1:7990 here
exit codes: 0 after SIGTERM or SIGINT, 2 for bad input
"""

SERVE_EXAMPLES = """\
examples:
  trimaran serve reward --config run.yaml --run-folder runs/mine        by hand, at its address there
  trimaran serve rollout --index 1 --run-folder runs/addition-20260101-120000
  trimaran serve rollout --index auto --run-folder /var/lib/trimaran \\
      --store-file /run/secrets/store --token-file /run/secrets/token   what a container runs
  trimaran serve follower --index 0 --run-folder runs/mine              on a replica's second host
exit codes: 0 at its end, 75 for what may pass, 76 of a trainer rank, or a host of a replica, that has to
meet the others again, 2 for bad input, 1 for any other failure
"""

LEDGER_EXAMPLES = """\
RUN is a run's folder or its id; without one, or as `latest`, it is the run in runs/ that was started
last. A run that is not here is asked of the manager; with --manager or TRIMARAN_MANAGER every RUN is,
and `latest` is the newest one there.
examples:
  trimaran ledger show 17                                 the life of group 17: why it was reissued, ...
  trimaran ledger show runs/addition-20260101-120000 17
  trimaran ledger verify                                  is anything lost, altered or there twice?
  trimaran ledger verify latest --manager host:7900       the manager reads it, and answers
exit codes: 1 when verify finds something, 2 for bad input
"""

REPLAY_EXAMPLES = """\
RUN is a run's folder, its id, or `latest`: the run in runs/ that was started last. It must have kept
its payloads: run.keep_payloads=all, or no checkpoint was collected yet. Only trainer ranks are
started, in a folder of their own.
examples:
  trimaran replay runs/addition-20260101-120000
  trimaran replay runs/addition-20260101-120000 --from 20    from that checkpoint, which must be kept
exit codes: 1 at the first step with other weights, 2 for bad input
"""

REWARD_EXAMPLES = """\
examples:
  trimaran reward serve examples/reward_plugin/brevity.py:brevity --minimum 0 --maximum 1
  trimaran reward check http://127.0.0.1:8700       does that plugin keep the contract?
"""

REWARD_SERVE_EXAMPLES = """\
FUNCTION is path/to/file.py:name, package.module:name or the name of a built-in rule.
examples:
  trimaran reward serve style.py:score --option words=8 --minimum 0 --maximum 1
  trimaran reward serve gsm8k --port 8701 --workers 4
  TOKEN=... trimaran reward serve style.py:score --host 10.0.0.7 --token-variable TOKEN \\
      --tls-cert cert.pem --tls-key key.pem
it answers POST /v1/score, GET /v1/info and GET /v1/health
exit codes: 0 after SIGTERM or SIGINT, 2 for bad input
"""

REWARD_CHECK_EXAMPLES = """\
URL is what reward.rules.NAME.plugin.url says: the contract's paths (/v1/score) follow it.
examples:
  trimaran reward check http://127.0.0.1:8700
  TOKEN=... trimaran reward check https://rewards.example:8443 --token-variable TOKEN --ca-file ca.pem
  trimaran reward check http://127.0.0.1:8700 --json
exit codes: 1 when a check fails, 2 for bad input
"""

ENVIRONMENT_EXAMPLES = """\
examples:
  trimaran environment serve examples/environment_plugin/guess.py:Guess
  trimaran environment check http://127.0.0.1:8800       does that plugin keep the contract?
"""

ENVIRONMENT_SERVE_EXAMPLES = """\
NAME is path/to/file.py:name or package.module:name: a class with reset(row) and step(message), or of
TRL's or verl's form; with --tools, functions.
examples:
  trimaran environment serve guess.py:Guess --option highest=16
  trimaran environment serve --tools tools.py:add tools.py:multiply --port 8801
  TOKEN=... trimaran environment serve guess.py:Guess --host 10.0.0.7 --token-variable TOKEN \\
      --tls-cert cert.pem --tls-key key.pem
it answers POST /v1/open, /v1/step and /v1/close, GET /v1/info and GET /v1/health
exit codes: 0 after SIGTERM or SIGINT, 2 for bad input
"""

ENVIRONMENT_CHECK_EXAMPLES = """\
URL is what environment.plugin.url says: the contract's paths (/v1/open) follow it.
examples:
  trimaran environment check http://127.0.0.1:8800
  trimaran environment check http://127.0.0.1:8800 --row '{"answer": "7", "extras": {"level": "easy"}}'
  TOKEN=... trimaran environment check https://worlds.example:8443 --token-variable TOKEN --ca-file ca.pem
exit codes: 1 when a check fails, 2 for bad input
"""


class _Parser(argparse.ArgumentParser):
    """The parser of a command: examples keep their lines, and a wrong choice gets its nearest."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, formatter_class=argparse.RawDescriptionHelpFormatter)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += did_you_mean(str(value), [*(action.choices or ())])
            raise


class _ShowVersion(argparse.Action):
    """Reads the version only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from importlib.metadata import version

        print("trimaran", version("trimaran"))
        parser.exit()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Overrides may also stand behind options: argparse takes positionals in one place only."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and (not hasattr(options, "overrides") or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.overrides = [*options.overrides, *rest]
    return options


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="trimaran", description="GRPO post-training as separate services that speak gRPC."
    )
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="print it")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in (
        _add_train,
        _add_serve,
        _add_launch,
        _add_health,
        _add_token,
        _add_model,
        add_data_commands,
        add_run_commands,
        _add_up,
        _add_view,
        _add_doctor,
        _add_plan,
        _add_convert,
        _add_import,
        _add_weights,
        _add_ledger,
        _add_replay,
        _add_reward,
        _add_environment,
    ):
        add(commands)
    return parser


def _add_train(commands: Any) -> None:
    words = "run a training: starts every service and shows its progress"
    add = add_command(commands, "train", words, "train.train:run", TRAIN_EXAMPLES)
    add("config", nargs="?", metavar="CONFIG", help="a run's YAML file")
    add_overrides(add)
    add("--resume", metavar="RUN", help="go on with the run of this folder, or the `latest`")
    add(
        "--network",
        choices=("loopback", "trusted"),
        help="trusted: everybody on it may read what travels (for network.subnet)",
    )
    add(
        "--launcher",
        choices=("local", "ray"),
        default="local",
        help="what starts its processes: this machine (default), or the Ray cluster it belongs to",
    )
    add(
        "--store",
        metavar="URL",
        help="redis://HOST:PORT/0, which processes on other machines need (default: in the folder)",
    )
    add("--view", action="store_true", help="and its pages in a browser; says where")
    _add_ray_address(add)
    _add_allow(add)


def _add_serve(commands: Any) -> None:
    words = "start one service alone, in this process"
    add = add_command(commands, "serve", words, "serve.serve:run", SERVE_EXAMPLES)
    add("kind", choices=KINDS)
    add(
        "--config",
        metavar="FILE",
        help="names every address under endpoints: (default: what stands in the run's store)",
    )
    add(
        "--run-folder",
        required=True,
        metavar="DIR",
        help="holds the run's context.json and token; with --store-file runs' folders are made in it",
    )
    add(
        "--index",
        type=_index,
        default=0,
        metavar="N",
        help="which replica or rank (default 0); with --store-file also auto, the lowest free one",
    )
    add(
        "--store-file",
        metavar="FILE",
        help="holds the URL of the manager's store: waits for a run that needs this service",
    )
    add("--token-file", metavar="FILE", help="what the services of runs show")
    add("--run", default="", metavar="RUN", help="its id (default: any run)")
    add_trust_options(add)
    add(
        "--address",
        default="",
        metavar="HOST:PORT",
        help="of a replica that joins beyond those that the configuration names",
    )
    _add_allow(add)


def _add_launch(commands: Any) -> None:
    words = "start a run's services and keep them alive, without a display"
    add = add_command(commands, "launch", words, "serve.launch:launch_run")
    folder = "the run's folder: it holds config.yaml and context.json"
    add("run_folder", metavar="RUN", help=folder)


def _add_ray_address(add: Add) -> None:
    add(
        "--ray-address",
        metavar="HOST:PORT",
        help="of Ray's head (default: RAY_ADDRESS, or the cluster that runs on this machine)",
    )


def _index(text: str) -> int | None:
    """None: any."""
    return None if text == "auto" else int(text)


def _add_allow(add: Add) -> None:
    add(
        "--allow",
        action="append",
        default=[],
        metavar="WHAT",
        help="a function (file.py:name, package.module:name), a plugin's host (https://host:port), a"
        " network (10.0.0.0/8) or a command ('command node server.js') that the run may name; may be repeated;"
        " TRIMARAN_ALLOW holds more, one a line",
    )


def _add_model(commands: Any) -> None:
    actions = add_group(commands, "model", "models that the hosts of a run fetch", MODEL_EXAMPLES)
    words = "bring one to a bucket or a folder, for model.source"
    add = add_command(actions, "push", words, "files.model:push")
    add("folder", metavar="FOLDER", help="a Hugging Face model folder")
    add("url", metavar="URL", help="s3://bucket/path, or a folder")


def _add_health(commands: Any) -> None:
    words = "does the service of this container answer? for health checks of images"
    add = add_command(commands, "health", words, "serve.health:health", HEALTH_EXAMPLES)
    add("kind", nargs="?", default="", choices=("", *HEALTH_KINDS), metavar="KIND")
    add("--address", default="", metavar="HOST:PORT|URL", help="that is asked")
    add("--timeout", type=float, default=5, metavar="S", help="default 5")


def _add_token(commands: Any) -> None:
    actions = add_group(commands, "token", "tokens of a manager's clients", TOKEN_EXAMPLES)
    words = "make one, and the line of the clients file for it"
    add = add_command(actions, "new", words, "serve.token:new")
    add("--owner", required=True, help="whose runs it sees: a person or a team")
    add("--role", required=True, choices=("viewer", "submitter", "operator"))
    add("--name", help="of the client, once in the file (default: the owner)")


def _add_up(commands: Any) -> None:
    words = "start the manager, which takes runs and keeps them going"
    add = add_command(commands, "up", words, "serve.up:up", UP_EXAMPLES)
    add_overrides(add)
    add("--config", metavar="FILE", help="the operator's YAML; docs/operations.md")
    add("--folder", metavar="DIR", help="for the runs' folders (default runs)")
    add("--store", metavar="URL", help="redis://...; default: files in the folders")
    add("--address", metavar="HOST:PORT", help="of RunService (default 127.0.0.1:7900)")
    add("--http", metavar="HOST:PORT", help="of HTTP (default 127.0.0.1:7980)")
    add(
        "--launcher",
        choices=("local", "external", "ray"),
        help="what starts runs' processes (default local: this machine)",
    )
    _add_ray_address(add)


def _add_view(commands: Any) -> None:
    words = "runs in a browser out of their files, read only, without a manager"
    add = add_command(commands, "view", words, "serve.view:view", VIEW_EXAMPLES)
    help_text = "a run's folder, a folder of several, or the id of one in runs/ (default: runs/)"
    add("run", nargs="?", metavar="RUN_OR_FOLDER", help=help_text)
    add(
        "--http",
        metavar="HOST:PORT",
        help="where it listens (default: 127.0.0.1, the first free port from 7990 on)",
    )
    add("--token-file", metavar="FILE", help="who looks must show it; only you can read it")
    add_trust_options(add)


def _add_doctor(commands: Any) -> None:
    words = "what is wrong with this host, other hosts and the links between them"
    add = add_command(commands, "doctor", words, "inspect.doctor:run", DOCTOR_EXAMPLES)
    add("config", nargs="?", metavar="CONFIG", help="a run's YAML file")
    add_overrides(add)
    add("--host", action="append", default=[], metavar="HOST:PORT", help="where one listens")
    add("--listen", metavar="HOST:PORT", help="answer doctors of other hosts, for an hour")
    add("--token-file", metavar="FILE", help="the same token on every host; only you can read it")
    add_trust_options(add)
    add("--store", metavar="URL", help="redis://...: is it set to keep what it acknowledges?")
    add_json(add)


def _add_convert(commands: Any) -> None:
    words = (
        "a Hugging Face folder to a checkpoint of any layout, of ours or of Megatron's, and back"
    )
    add = add_command(commands, "convert", words, "files.convert:convert", CONVERT_EXAMPLES)
    add(
        "source",
        metavar="SOURCE",
        help="a Hugging Face folder, a checkpoint of ours or of Megatron's, or a run: its folder, its id in"
        " runs/, latest",
    )
    add("target", metavar="TARGET", help="a folder that is not there yet")
    add(
        "--to",
        choices=("huggingface", "checkpoint", "torch_dist"),
        help="what to make: torch_dist is megatron-core's distributed checkpoint, weights alone (default: a"
        " Hugging Face folder of a checkpoint, a checkpoint of a Hugging Face folder)",
    )
    for name in ("tensor", "pipeline", "expert"):
        help_text = f"trainer.{name}_parallel of the checkpoint that is made"
        add(f"--{name}-parallel", type=int, default=1, metavar="N", help=help_text)
    add(
        "--dtype",
        choices=("bfloat16", "float32"),
        help="of the Hugging Face folder that is made; what a run computes in (default: as it was)",
    )
    add(
        "--model",
        metavar="FOLDER",
        help="a Hugging Face folder of the same model, for tokenizer and config.json (default: that of"
        " the run in whose folder the checkpoint lies)",
    )


def _add_plan(commands: Any) -> None:
    words = "what a run takes of devices and hosts, and whether it fits, before anything starts"
    add = add_command(commands, "plan", words, "inspect.plan:plan", PLAN_EXAMPLES)
    add("config", metavar="CONFIG", help="a run's YAML file")
    add_overrides(add)
    add(
        "--device-memory",
        type=float,
        metavar="GIB",
        help="of each device; of the host, where all computes on a CPU (default: what this machine has)",
    )


def _add_import(commands: Any) -> None:
    words = "a file of verl, EasyR1 or MindSpeed-RL as a run of ours"
    add = add_command(commands, "import", words, "files.import_:import_run", IMPORT_EXAMPLES)
    add("system", choices=("verl", "easyr1", "mindspeed-rl"), metavar="SYSTEM")
    add("file", metavar="FILE", help="theirs")
    add_overrides(add, "their keys, over the file's")
    add("-o", "--output", default="run.yaml", metavar="RUN", help="default run.yaml")
    names = [f"{name}{ending}" for ending in ("", ".yaml") for name in ("ppo_trainer", MEGATRON)]
    add(
        "--config-name",
        choices=names,
        default="",
        metavar="NAME",
        help=f"verl's: {', '.join(names[:2])}",
    )
    add("--config-path", help=argparse.SUPPRESS)


def _add_weights(commands: Any) -> None:
    words = "which version is live, on which replica, and whether it is what was published"
    questions = add_group(commands, "weights", words, WEIGHTS_EXAMPLES)
    words = "committed versions and how far they are proven"
    listing = add_command(questions, "list", words, "inspect.weights:list_versions")
    words = "one version and its proof on each replica"
    show = add_command(questions, "show", words, "inspect.weights:show_version")
    for add in (listing, show):
        add("run", nargs="?", metavar="RUN")
    show("version", nargs="?", metavar="VERSION", help="such as 0.12, or live")
    words = "read back what the replicas have loaded, now"
    verify = add_command(questions, "verify", words, "inspect.weights:verify")
    verify("target", nargs="?", metavar="RUN|RUN/REPLICA|REPLICA")
    for add in (listing, show, verify):
        add_json(add)


def _add_ledger(commands: Any) -> None:
    words = "what the run has recorded: the life of a group, and whether all of it is sound"
    questions = add_group(commands, "ledger", words, LEDGER_EXAMPLES)
    show = add_command(
        questions, "show", "the life of one group in plain words", "inspect.ledger:show"
    )
    words = "read all of it: is anything lost or there twice?"
    verify = add_command(questions, "verify", words, "inspect.ledger:verify")
    for add in (show, verify):
        add("run", nargs="?", metavar="RUN")
        add("--manager", metavar="HOST:PORT", help="ask it, not a folder here")
        add_json(add)
    show("group", nargs="?", type=int, metavar="GROUP", help="its number in prompt order, from 0")


def _add_replay(commands: Any) -> None:
    words = "train a run again from its ledger, and compare the weights of every step"
    add = add_command(commands, "replay", words, "inspect.replay:replay", REPLAY_EXAMPLES)
    add("run", metavar="RUN")
    words = "begin at its checkpoint, not at the first step"
    add("--from", dest="start", type=int, default=0, metavar="STEP", help=words)


def _add_plugin_server(add: Add, port: int) -> None:
    add("--host", default="127.0.0.1", help="default 127.0.0.1; any other needs a token")
    add("--port", type=int, default=port, help=f"default {port}; 0 takes a free one")
    add("--token-variable", metavar="NAME", help="environment variable with the bearer token")
    add("--tls-cert", metavar="FILE", help="certificate chain in PEM; with --tls-key")
    add("--tls-key", metavar="FILE", help="its private key")
    add("--option", action="append", default=[], metavar="key=value", help="keyword argument")


def _add_plugin_check(add: Add) -> None:
    add("url", metavar="URL")
    add("--token-variable", metavar="NAME", help="environment variable with the bearer token")
    add("--ca-file", metavar="FILE", help="certificates that https trusts, instead of the system's")
    add("--timeout", type=float, default=30, metavar="S", help="of one request (default 30)")
    add_json(add)


def _add_environment(commands: Any) -> None:
    words = "serve an environment over HTTP, or check a plugin that others serve"
    actions = add_group(commands, "environment", words, ENVIRONMENT_EXAMPLES)
    words = "a class, or tools, as an HTTP server"
    where = "environment.environment:serve"
    add = add_command(actions, "serve", words, where, ENVIRONMENT_SERVE_EXAMPLES)
    add("names", metavar="NAME", nargs="+", help="a class; with --tools, functions")
    add("--tools", action="store_true", help="the names are of functions that the policy may call")
    _add_plugin_server(add, 8800)
    add("--answer-key", default="answer", metavar="KEY", help="what a row calls its answer")
    add("--max-episodes", type=int, default=64, metavar="N", help="at a time (default 64)")
    add("--timeout", type=float, default=30, metavar="S", help="of one step (default 30)")
    add("--memory-mib", type=int, default=4096, metavar="MIB", help="of one process")
    words = "does a plugin keep the contract? one verdict a line"
    where = "environment.environment:check"
    add = add_command(actions, "check", words, where, ENVIRONMENT_CHECK_EXAMPLES)
    _add_plugin_check(add)
    add("--row", metavar="JSON", help="what the episodes begin with: a row as in the contract")


def _add_reward(commands: Any) -> None:
    words = "serve a reward function over HTTP, or check a plugin that others serve"
    actions = add_group(commands, "reward", words, REWARD_EXAMPLES)
    words = "a reward function as an HTTP server"
    add = add_command(actions, "serve", words, "reward.reward_serve:serve", REWARD_SERVE_EXAMPLES)
    add("function", metavar="FUNCTION", help="of any signature that a run takes")
    _add_plugin_server(add, 8700)
    words = "least score; also what an answer gets that crashes or hangs its checker twice"
    add("--minimum", type=float, metavar="SCORE", help=words)
    add("--maximum", type=float, metavar="SCORE", help="a score above it is not believed")
    add("--nondeterministic", action="store_true", help="equal samples may get unequal scores")
    add("--workers", type=int, default=2, metavar="N", help="processes (default 2)")
    add("--timeout", type=float, default=10, metavar="S", help="of one completion (default 10)")
    add("--memory-mib", type=int, default=4096, metavar="MIB", help="of one process")
    add("--max-samples", type=int, default=1000, metavar="N", help="of one request")

    words = "does a plugin keep the contract? one verdict a line"
    add = add_command(actions, "check", words, "reward.reward:check", REWARD_CHECK_EXAMPLES)
    _add_plugin_check(add)
