"""Starts a program in any language with its own folder and nothing else, and ends what it leaves.

    python -S -s -P -B program_child.py FD      FD: what `_job` of program.py makes

    this process ──▶ [first of its process namespace ──▶] the program
    waits             gathers what ends                    Landlock, limits, seccomp, then execve

Started by program.py as a process of its own, and imports nothing of ours. What it writes to the job's
socket says which layers act, or why the program did not begin. In a network of its own the program has one
address, that of the endpoint: its listener goes through that socket to the service, which answers there.
"""

# pyright: standard

import contextlib
import fcntl
import marshal
import os
import select
import signal
import socket
import struct
import sys

sys.path.insert(0, os.path.dirname(__file__))
from layers import (
    LIBC,
    NETWORK_VERSION,
    SET_NO_NEW_PRIVS,
    SET_PDEATHSIG,
    check,
    die_with_parent,
    drop_capabilities,
    enter_namespaces,
    filter_calls,
    landlock_version,
    leave_root,
    limit,
    restrict_files,
    show_own_processes,
)

SET_CHILD_SUBREAPER = 36
SET_FLAGS, UP = 0x8914, 0x1 | 0x40
BACKLOG = 128


class StopError(BaseException):
    """Our parent wants the end, or has come to its own."""


def stop(*_):
    raise StopError


def end_with(parent):
    """By a signal, at which this process ends the program before itself."""
    check(LIBC.prctl(SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0))
    if os.getppid() != parent:  # it had ended before
        os._exit(1)


def confine(job):
    """Names of the layers that act around the program, and the listener of its network. Raises OSError."""
    acting, listener = [], None
    if leave_root(tuple(job["needed"]), job["folder"]):
        acting.append("nobody")
    check(LIBC.prctl(SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    if enter_namespaces(job["network"]):
        acting.append("namespaces")
        if not job["network"]:
            listener = listen(job["port"])
    elif not job["network"] and landlock_version() < NETWORK_VERSION:
        raise OSError(
            "the kernel lets no user namespace be made and has no Landlock for the network (Linux 6.7), so"
            " nothing keeps the program from the network"
        )
    if not landlock_version():
        raise OSError("the kernel has no Landlock, so nothing keeps other files from the program")
    check(LIBC.prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0))
    end_with(job["parent"])  # a change of identity took it back
    return acting, listener


def listen(port):
    """In a network that has nothing else."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sh14x", b"lo", UP))
    listener = socket.create_server(("127.0.0.1", port), backlog=BACKLOG)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def gather(lifeline, job, acting):
    """The first process of its namespace: when it ends, all in it end."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with_parent()
    if select.select([lifeline], [], [], 0)[0]:
        os._exit(1)  # the parent ended before it could take this process with it
    if show_own_processes():
        job["readable"].append("/proc")
    program = os.fork()
    if not program:
        become(job, acting)
    os.close(job["status_fd"])
    ended, status = os.wait()
    while ended != program:
        ended, status = os.wait()
    os._exit(exit_code(status))


def become(job, acting):
    """The program. Returns never."""
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.chdir(job["folder"])
        port = 0 if job["network"] or "namespaces" in acting else job["port"]
        restrict_files(job["readable"], job["folder"], port, scoped=True)
        drop_capabilities()
        if "namespaces" in acting and os.getuid():  # root's are not counted, others' not apart
            job["limits"]["RLIMIT_NPROC"] = job["max_processes"]
            acting.append("processes")
        limit(job["limits"])
        if job["filter"]:
            filter_calls(job["filter"])
        os.set_inheritable(job["status_fd"], False)
        os.write(job["status_fd"], marshal.dumps({"layers": [*acting, "landlock"]}))
        os.execve(job["command"][0], job["command"], job["environment"])
    except OSError as error:
        os.write(job["status_fd"], marshal.dumps({"error": f"{job['command'][0]}: {error}"}))
    os._exit(127)


def exit_code(status):
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def end_children(listed):
    """Also those that have left the program's session: what loses its parent becomes this process's child.
    `listed`: the kernel's list of them, opened while /proc was still that of this process."""
    while True:
        listed.seek(0)
        children = [int(one) for one in listed.read().split()]
        if not children:
            return
        for child in children:
            os.kill(child, signal.SIGKILL)
        for child in children:
            os.waitpid(child, 0)


def remove(folder):
    for place, folders, names in os.walk(folder, topdown=False):
        for name in names:
            os.unlink(os.path.join(place, name))
        for name in folders:
            path = os.path.join(place, name)
            os.unlink(path) if os.path.islink(path) else os.rmdir(path)
    os.rmdir(folder)


def main():
    with open(int(sys.argv[1]), "rb") as file:
        job = marshal.load(file)
    end_with(job["parent"])
    with open(f"/proc/self/task/{os.getpid()}/children") as listed:
        os._exit(run(job, listed))


def run(job, listed):
    """The program's exit code, once nothing of it is left."""
    status = socket.socket(fileno=job["status_fd"])
    code = 1
    try:
        signal.signal(signal.SIGTERM, stop)
        acting, listener = confine(job)
        if listener:
            socket.send_fds(status, [b"L"], [listener.fileno()])
            listener.close()
        lifeline, held = os.pipe()
        child = os.fork()
        if not child:
            os.close(held)
            gather(lifeline, job, acting) if "namespaces" in acting else become(job, acting)
        status.close()
        code = exit_code(os.waitpid(child, 0)[1])
    except StopError:
        pass
    except OSError as error:
        os.write(job["status_fd"], marshal.dumps({"error": str(error)}))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_children(listed)
    with contextlib.suppress(OSError):  # the service removes what is left
        remove(job["folder"])
    return code


if __name__ == "__main__":
    main()
