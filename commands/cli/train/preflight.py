"""Everything that can be known to be wrong before anything is started.

Each check raises one InputError that names the key or the file and what would be right.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

from commands.cli.inspect.plan import check_fit, check_memory
from commands.doctor.examine import examine
from commands.doctor.finding import Severity
from commands.doctor.system import System
from services.environment.hosts import check_environment
from services.reward.terms import check_row, make_terms
from services.trainer.checkpoints.checkpoint_folder import find
from trimaran.config import RunConfig
from trimaran.data.prompts import Dataset, ImageLimits, ImageSizes
from trimaran.errors import InputError
from trimaran.host.machine import read_machine
from trimaran.run.placement import place
from trimaran.trust.access import NO_TRUST
from trimaran.trust.allowed import Allowed


def refuse_password(store: str | None) -> None:
    """Refuses a password in a store's URL on the command line."""
    if store and urlsplit(store).password:
        raise InputError(
            "--store: a password on the command line can be read by everybody on this machine; name"
            " the password's file with ?password_file=FILE (trimaran up takes the whole URL under"
            " store: in a --config file that only you can read)"
        )


def check_run(config: RunConfig) -> None:
    """Checks a run whose processes all start on this machine."""
    check_inputs(config)
    machine = read_machine(os.environ)
    place(config, machine)
    check_memory(config, machine)


def with_checkpoint(config: RunConfig) -> RunConfig:
    """`trainer.load` by name, where it is a folder of several: the run that writes these may go on, and the newest
    be another one for the next that looks. Raises InputError where there is none."""
    if config.trainer.load is None:
        return config
    load = find(config.trainer.load, "trainer.load")
    trainer = config.trainer.model_copy(update={"load": load})
    return config.model_copy(update={"trainer": trainer})


def check_inputs(config: RunConfig) -> None:
    if config.model.source is None or config.model.path.is_dir():
        check_model(config, config.model.path)  # else its services fetch it, and look at it then
    allowed = Allowed.from_environment()
    make_terms(config, allowed)
    check_environment(config, allowed)
    check_datasets(config)
    check_endpoints(config)


def check_model(config: RunConfig, folder: Path) -> None:
    facts = check_fit(config, folder)
    if facts.vision and config.rollout.engine == "transformers":
        raise InputError(
            "rollout.engine: transformers computes text models only, and model.path is a"
            " vision-language model; choose vllm"
        )


def show_errors(config: RunConfig | None, service: str | None = None) -> None:
    """The doctor's errors of this host, a line each on standard error. They stop nothing: what is
    measured or estimated may be wrong. `config` None: of a manager, which has no run yet. `service`:
    the only one of the run that is to start here."""
    for finding in examine(System(os.environ), config, is_start=True, service=service):
        if finding.severity is Severity.ERROR:
            print(f"doctor: {finding.what}; {finding.fix}", file=sys.stderr)


def check_datasets(config: RunConfig) -> None:
    """Every row of every file, one in memory at a time; images are counted and not opened: with the fewest
    tokens that each can take, where the model is here to say.

    A rule refuses a reference answer that it cannot work with: better now than in the run.
    """
    model, limits = config.model.path, ImageLimits.of(config.rollout)
    sizes = ImageSizes.of(config.data, model) if model.is_dir() else None
    for section in (*config.data.train, *config.data.validation):
        dataset = Dataset(section, sizes, limits=limits)
        for prompt in dataset.texts():
            check_row(config, prompt, str(section.path.parent / prompt.prompt_id))


def check_endpoints(config: RunConfig) -> None:
    for key, value in config.endpoints:
        for address in (value,) if isinstance(value, str) else value or ():
            try:
                NO_TRUST.check_address(address)
            except InputError as error:
                raise InputError(f"endpoints.{key}: {error}") from None
