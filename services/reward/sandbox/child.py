"""Gives up what a foreign program may not have, layer by layer, and then runs it.

    python -S -s -P -B child.py FD      FD: what make_job of job.py makes

Started by run.py as a process of its own; imports nothing of ours, and little else, since
starting is most of what a run costs (marshal, not json, for that reason). What it writes to the
job's `status_fd` says which layers act, or what went wrong before the program began.
The foreign code runs in this very process, since it may start no other: every layer is one that
the kernel enforces from outside and that no code can take back.
"""

import ctypes
import marshal
import os
import resource
import select
import struct
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
SET_PDEATHSIG, SET_DUMPABLE, SET_SECCOMP, SET_NO_NEW_PRIVS = 1, 4, 22, 38
SECCOMP_MODE_FILTER = 2
NEW_USER, NEW_NS, NEW_IPC, NEW_PID, NEW_NET = 1 << 28, 1 << 17, 1 << 27, 1 << 29, 1 << 30
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 2, 4, 8, 1 << 14, 1 << 18
CAPABILITY_VERSION_3 = 0x20080522
NOBODY = 65534
SIGKILL = 9

LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446  # on every architecture
LANDLOCK_VERSION, LANDLOCK_PATH_BENEATH = 1, 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIRECTORY, TRUNCATE = 1, 2, 4, 8, 1 << 14
# Rights known to the versions 1, 2, 3 (and 4), 5 of its interface.
RIGHTS = [0, (1 << 13) - 1, (1 << 14) - 1, (1 << 15) - 1, (1 << 15) - 1, (1 << 16) - 1]


def check(result):
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def die_with_parent():
    check(LIBC.prctl(SET_PDEATHSIG, SIGKILL, 0, 0, 0))


def die_with(parent):
    die_with_parent()
    if os.getppid() != parent:  # it had ended before
        os._exit(1)


def leave_root():
    """As root, become the user `nobody`, unless that user could not read Python itself."""
    if os.geteuid() != 0:
        return False
    try:
        os.setgroups([])
        os.setegid(NOBODY)
        os.seteuid(NOBODY)
        readable = os.access(os.__file__, os.R_OK, effective_ids=True)
        os.seteuid(0)
        os.setegid(0)
        if not readable:
            return False
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    except OSError:
        return False
    check(LIBC.prctl(SET_DUMPABLE, 1, 0, 0, 0))  # or /proc/self/uid_map would be root's
    return True


def enter_namespaces():
    """A user namespace first: with it the others need no privilege. All or none."""
    user, group = os.geteuid(), os.getegid()
    if LIBC.unshare(NEW_USER | NEW_NS | NEW_IPC | NEW_PID | NEW_NET) < 0:
        return False
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    return True


def hide(path):
    """Under an empty directory in memory, for this process only."""
    flags = ctypes.c_ulong(MS_NOSUID | MS_NODEV | MS_NOEXEC)
    private = LIBC.mount(None, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None)
    return private == 0 and LIBC.mount(b"tmpfs", path, b"tmpfs", flags, b"size=4096") == 0


def restrict_files(readable):
    """Landlock: of all files only `readable` can be read and only /dev/null written.

    Returns the version of its interface, 0 where the kernel has none.
    """
    version = max(LIBC.syscall(LANDLOCK_CREATE, None, 0, LANDLOCK_VERSION), 0)
    if not version:
        return 0
    handled = RIGHTS[min(version, len(RIGHTS) - 1)]
    rules = ctypes.create_string_buffer(struct.pack("=Q", handled), 8)
    ruleset = check(LIBC.syscall(LANDLOCK_CREATE, rules, 8, 0))
    read = READ_FILE | READ_DIRECTORY | EXECUTE
    write = read | WRITE_FILE | TRUNCATE
    allowed = [(path, read) for path in readable] + [("/dev/null", write)]
    for path, rights in allowed:
        try:
            file = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except (FileNotFoundError, PermissionError):
            continue  # nothing to grant
        if not os.path.isdir(path):
            rights &= EXECUTE | READ_FILE | WRITE_FILE | TRUNCATE
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights & handled, file), 12)
        check(LIBC.syscall(LANDLOCK_ADD, ruleset, LANDLOCK_PATH_BENEATH, rule, 0))
        os.close(file)
    check(LIBC.syscall(LANDLOCK_RESTRICT, ruleset, 0))
    os.close(ruleset)
    return version


def drop_capabilities():
    header = struct.pack("=Ii", CAPABILITY_VERSION_3, 0)
    check(LIBC.capset(header, bytes(24)))


def limit(limits):
    for name, value in limits.items():
        kind = getattr(resource, name)
        _soft, hard = resource.getrlimit(kind)
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        resource.setrlimit(kind, (value, value))


def filter_calls(program):
    """seccomp. The one layer of the network, of processes and of signals that is always there."""
    code = ctypes.create_string_buffer(program, len(program))
    count, address = len(program) // 8, ctypes.addressof(code)
    header = ctypes.create_string_buffer(struct.pack("@HP", count, address))
    check(LIBC.prctl(SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0))


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
    layers = []
    if leave_root():
        layers.append("nobody")
    check(LIBC.prctl(SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    if enter_namespaces():
        layers.append("namespaces")
        if hide(b"/proc"):
            layers.append("no /proc")
    die_with(job["parent"])  # a change of identity took it back
    if "namespaces" in layers:
        fork_into_namespaces(job)
        job["limits"]["RLIMIT_NPROC"] = job["max_threads"]
    version = restrict_files(job["readable"])
    if version:
        layers.append("landlock")
    if not {"landlock", "no /proc", "nobody"} & set(layers):
        raise OSError(
            "neither Landlock, namespaces nor another user keeps the environment of the service,"
            " which may hold secrets, from the program"
        )
    drop_capabilities()
    check(LIBC.prctl(SET_DUMPABLE, 0, 0, 0, 0))
    limit(job["limits"])
    filter_calls(bytes.fromhex(job["filters"][version >= 3]))  # before, truncating was free
    return layers


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
    sys.argv[:] = ["answer.py"]
    module = sys.modules["__main__"] = type(sys)("__main__")
    source = job["source"]
    job.clear()
    exec(compile(source, "answer.py", "exec"), module.__dict__)


if __name__ == "__main__":
    main()
