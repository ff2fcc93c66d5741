"""What the start of a run would refuse: the checks of `trimaran/cli/preflight.py`, as findings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from trimaran.config import RunConfig
from trimaran.doctor.finding import Check, Fault, Finding, Severity
from trimaran.errors import InputError

REFUSED = Fault(
    "refused",
    Severity.ERROR,
    "{what}",
    "`trimaran train` stops here, before it starts anything",
    "correct what the line names",
)
CHECK = Check(
    "run",
    "what `trimaran train` checks of a configuration before it starts: model, lengths, reward rules,"
    " every row of the data, endpoints, devices",
    (REFUSED,),
)


def check_run_by(
    check: Callable[[RunConfig], None], config: RunConfig, known: Collection[str] = ()
) -> Iterator[Finding]:
    """`check`: raises InputError with a line for each fault. `known`: lines that are findings already."""
    try:
        check(config)
    except InputError as error:
        for line in str(error).splitlines():
            if line not in known:
                yield CHECK.found(REFUSED, what=line)
