"""docs/doctor.md, from the checks and the matrix."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trimaran.doctor import (
    addresses,
    devices,
    disks,
    limits,
    links,
    memory,
    others,
    ports,
    preloads,
    runs,
    stores,
    tools,
    versions,
)
from trimaran.doctor.finding import Check, Fault

CHECKS: tuple[Check, ...] = tuple(
    module.CHECK
    for module in (
        *(
            runs,
            versions,
            preloads,
            tools,
            devices,
            addresses,
            ports,
            limits,
            memory,
            disks,
            stores,
        ),
        *(others, links),
    )
)

HEAD = """\
# Doctor

Written by `python -m trimaran.doctor > docs/doctor.md` from the checks in `trimaran/doctor/`.

`trimaran doctor` looks for what makes a run fail, hang or crawl, before the run finds it out. Each
finding says what is wrong, why it matters, and the command that mends it. It changes nothing: it reads,
writes a small file to the run's folders and removes it, and measures links.

```sh
trimaran doctor                                      # this host
trimaran doctor run.yaml rollout.replicas=4          # and what this run needs of it
trimaran doctor run.yaml --store redis://host:6379/0 # and of its store
trimaran doctor --json                               # for machines
```

Exit codes: 0 without an error (warnings are told), 1 with one, 2 for bad input. `trimaran train` and
`trimaran up` show errors of the checks that take no time, one line each, and go on. Where other hosts or containers start a run's
services, each service does so on its own, in its log.

## Several hosts

On each other host, in the environment that the run will have there, with a token that you make once and
copy (one line of 16 to 256 characters, readable by you alone):

```sh
umask 077; head -c 24 /dev/urandom | base64 > doctor.token
trimaran doctor --listen 10.0.0.2:7990 --token-file doctor.token \\
    --tls-cert service.crt --tls-key service.key --tls-ca service-ca.crt     # ends after an hour
```

Then, on one of them:

```sh
trimaran doctor run.yaml --host 10.0.0.2:7990 --host 10.0.0.3:7990 --token-file doctor.token \\
    --tls-cert service.crt --tls-key service.key --tls-ca service-ca.crt
```

The files are those of the run's services (`services.tls`, docs/operations.md). Where nobody reads along on
the network, `--network trusted` says so in their place. Beyond loopback a doctor without either, or without a
token, neither listens nor calls.

Every host examines itself, clocks and versions are compared, and each pair of hosts measures its link:
by TCP, as the relay uses it, in both directions. Where the run has collectives between hosts, a pair with devices of
one kind also makes a group of two, as the weight plane does: by Gloo on CPUs, by NCCL on GPUs and by HCCL on NPUs, there on the first
device that the doctor sees. **Nobody has run it by NCCL or HCCL.** Without a run no device is opened, and hosts
measure by Gloo. None of the three knows TLS, so they want `--network trusted`. The token never travels; each side proves that it has it. What
travels is the configuration, findings, times, and zeros. Stop the listeners when you are done."""

JSON = """\
## JSON

`--json` prints one object. `form` is 1; keys may be added within a form, and none changes its meaning.

| key | value |
|---|---|
| `hosts[].host` | the host's name; of others HOST:PORT as given |
| `hosts[].findings[].check`, `.fault` | names of this page; `fault` is empty where the check is fine |
| `hosts[].findings[].severity` | `error`, `warning` or `fine` |
| `hosts[].findings[].what`, `.why`, `.mend` | texts; `mend` may have several lines |
| `links[].start`, `.end`, `.transport` | HOST:PORT, HOST:PORT, `relay`, `gloo`, `nccl` or `hccl` |
| `links[].seconds`, `.bytes_per_second` | round trip; bandwidth |
| `links[].said` | why it was not measured; else empty |"""


def markdown() -> Iterator[str]:
    """Its lines."""
    yield from HEAD.splitlines()
    for check in CHECKS:
        yield ""
        yield f"## {check.name}"
        yield ""
        yield f"Looks at {check.looks_at}."
        for fault in check.faults:
            yield ""
            yield from _fault(check, fault)
        if check is versions.CHECK:
            yield ""
            yield from _matrix()
    yield ""
    yield from JSON.splitlines()


def _fault(check: Check, fault: Fault) -> Iterator[str]:
    yield f"**{check.name}/{fault.name}** ({fault.severity}): {_plain(fault.what)}"
    yield ""
    yield f"- Why: {_plain(fault.why)}."
    if fault.symptom:
        yield f"- Else seen as: {_plain(fault.symptom)}"
    yield "- Mend:"
    yield ""
    yield "  ```text"
    yield from (f"  {line}" for line in _plain(fault.mend).splitlines())
    yield "  ```"


def _matrix() -> Iterator[str]:
    yield "| where there is | is needed | source |"
    yield "|---|---|---|"
    for row in versions.load_matrix():
        when = ", ".join(f"{name} {want}" for name, want in row.when.items()) or "anything"
        needs = ", ".join(f"{name} {want.lstrip('?')}" for name, want in row.needs.items())
        yield f"| {when} | {needs} | {row.source} |"


WHOLE = {
    "{what}": "the finding names it",
    "{mend}": "the finding gives it",
    "{store}: {said}": "STORE: why it does not answer",
    "{host}: {said}": "HOST: why it does not answer",
}
"""Texts that come as they are from another check, or from the system."""


def _plain(text: str) -> str:
    """Places in capitals: in angle brackets they would be HTML."""
    return WHOLE.get(text) or re.sub(r"{(\w+)[^}]*}", lambda place: place[1].upper(), text)
