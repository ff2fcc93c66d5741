"""The layers that a process gives up its rights by, each of them enforced by the kernel.

child.py and program.py start with them in processes of their own; imports nothing of ours, and little else,
since starting is most of what a run costs.
"""

import ctypes
import os
import resource
import struct

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


def check(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def die_with_parent() -> None:
    check(LIBC.prctl(SET_PDEATHSIG, SIGKILL, 0, 0, 0))


def die_with(parent: int) -> None:
    die_with_parent()
    if os.getppid() != parent:  # it had ended before
        os._exit(1)


def leave_root() -> bool:
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


def enter_namespaces() -> bool:
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


def hide(path: bytes) -> bool:
    """Under an empty directory in memory, for this process only."""
    flags = ctypes.c_ulong(MS_NOSUID | MS_NODEV | MS_NOEXEC)
    private = LIBC.mount(None, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None)
    return private == 0 and LIBC.mount(b"tmpfs", path, b"tmpfs", flags, b"size=4096") == 0


def restrict_files(readable: list[str]) -> int:
    """Landlock: of all files only `readable` can be read and only /dev/null written.

    Returns the version of its interface, 0 where the kernel has none.
    """
    version: int = max(LIBC.syscall(LANDLOCK_CREATE, None, 0, LANDLOCK_VERSION), 0)
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


def drop_capabilities() -> None:
    header = struct.pack("=Ii", CAPABILITY_VERSION_3, 0)
    check(LIBC.capset(header, bytes(24)))


def limit(limits: dict[str, int]) -> None:
    for name, value in limits.items():
        kind = getattr(resource, name)
        _soft, hard = resource.getrlimit(kind)
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        resource.setrlimit(kind, (value, value))


def filter_calls(program: bytes) -> None:
    """seccomp. The one layer of the network, of processes and of signals that is always there."""
    code = ctypes.create_string_buffer(program, len(program))
    count, address = len(program) // 8, ctypes.addressof(code)
    header = ctypes.create_string_buffer(struct.pack("@HP", count, address))
    check(LIBC.prctl(SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0))
