"""Gives up what a foreign program may not have, layer by layer, and then runs it.

    python -S -s -P -B child.py FD      FD: what make_job of job.py makes

Started by run.py as a process of its own; imports nothing of ours, and little else, since
starting is most of what a run costs (marshal, not json, for that reason). What it writes to the
job's `status_fd` says which layers act, or what went wrong before the program began.
The foreign code runs in this very process, since it may start no other: every layer is one that
the kernel enforces from outside and that no code can take back.
"""

# pyright: standard

import marshal
import os
import select
import sys

sys.path.insert(0, os.path.dirname(__file__))
from layers import (
    LIBC,
    SET_DUMPABLE,
    SET_NO_NEW_PRIVS,
    check,
    die_with,
    die_with_parent,
    drop_capabilities,
    enter_namespaces,
    filter_calls,
    hide,
    leave_root,
    limit,
    restrict_files,
)


def fork_into_namespaces(job):
    """The child is the first process of its namespaces: when it ends, all in them end.

    Returns in the child only; this process stays to end with its parent and to pass on the exit.
    """
    lifeline, held = os.pipe()
    child = os.fork()
    if child:
        os.close(job["status_fd"])
        for fd in (0, 1, 2):
            os.close(fd)
        _pid, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        os._exit(code if code >= 0 else 128 - code)
    os.close(held)
    os.setsid()  # out of reach of kill(0, …)
    die_with_parent()
    if select.select([lifeline], [], [], 0)[0]:
        os._exit(1)  # the parent ended before it could take this process with it
    os.close(lifeline)


def confine(job):
    """Names of the layers that act. Raises OSError for one that must and does not."""
    acting = []
    if leave_root():
        acting.append("nobody")
    check(LIBC.prctl(SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    if enter_namespaces():
        acting.append("namespaces")
        if hide(b"/proc"):
            acting.append("no /proc")
    die_with(job["parent"])  # a change of identity took it back
    if "namespaces" in acting:
        fork_into_namespaces(job)
        job["limits"]["RLIMIT_NPROC"] = job["max_threads"]
    version = restrict_files(job["readable"])
    if version:
        acting.append("landlock")
    if not {"landlock", "no /proc", "nobody"} & set(acting):
        raise OSError(
            "neither Landlock, namespaces nor another user keeps the environment of the service,"
            " which may hold secrets, from the program"
        )
    drop_capabilities()
    check(LIBC.prctl(SET_DUMPABLE, 0, 0, 0, 0))
    limit(job["limits"])
    filter_calls(bytes.fromhex(job["filters"][version >= 3]))  # before, truncating was free
    return acting


def main():
    with open(int(sys.argv[1]), "rb") as file:
        job = marshal.load(file)
    die_with(job["parent"])
    status = job["status_fd"]
    try:
        report = {"layers": confine(job)}
    except OSError as error:
        os.write(status, marshal.dumps({"error": str(error)}))
        os._exit(1)
    os.write(status, marshal.dumps(report))
    os.close(status)
    sys.path[:] = [path for path in sys.path if path != os.path.dirname(__file__)]
    sys.path += job["packages"]
    del sys.modules["layers"]
    sys.argv[:] = ["answer.py"]
    module = sys.modules["__main__"] = type(sys)("__main__")
    source = job["source"]
    job.clear()
    exec(compile(source, "answer.py", "exec"), module.__dict__)


if __name__ == "__main__":
    main()
