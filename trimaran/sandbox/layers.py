"""The layers that a process gives up its rights by, each of them enforced by the kernel.

child.py and program_child.py start with them in processes of their own; imports nothing of ours, and little else,
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
LANDLOCK_VERSION, LANDLOCK_PATH_BENEATH, LANDLOCK_PORT = 1, 1, 2
EXECUTE, WRITE_FILE, READ_FILE, READ_DIRECTORY, TRUNCATE = 1, 2, 4, 8, 1 << 14
CONNECT, BIND_AND_CONNECT, NETWORK_VERSION = 2, 3, 4
SCOPE_SOCKETS_AND_SIGNALS, SCOPE_VERSION = 3, 6
DEVICES = 1 << 6 | 1 << 11 | 1 << 15  # to make them, and to give them orders
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


def leave_root(needed: tuple[str, ...] = (os.__file__,), folder: str = "") -> bool:
    """As root, become the user `nobody`, to whom `folder` then belongs, unless that user could not read what is
    `needed`, or not reach that folder."""
    if os.geteuid() != 0:
        return False
    try:
        os.setgroups([])
        os.setegid(NOBODY)
        os.seteuid(NOBODY)
        readable = all(os.access(path, os.R_OK, effective_ids=True) for path in needed)
        readable &= os.access(os.path.dirname(folder) or "/", os.X_OK, effective_ids=True)
        os.seteuid(0)
        os.setegid(0)
        if not readable:
            return False
        if folder:
            _hand_over(folder)
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    except OSError:
        return False
    check(LIBC.prctl(SET_DUMPABLE, 1, 0, 0, 0))  # or /proc/self/uid_map would be root's
    return True


def _hand_over(folder: str) -> None:
    for place, _, names in os.walk(folder):
        for path in (place, *(os.path.join(place, name) for name in names)):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


def enter_namespaces(network: bool = False) -> bool:
    """A user namespace first: with it the others need no privilege. All or none. `network`: that of the host
    stays."""
    user, group = os.geteuid(), os.getegid()
    without_network = NEW_USER | NEW_NS | NEW_IPC | NEW_PID
    if LIBC.unshare(without_network if network else without_network | NEW_NET) < 0:
        return False
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    return True


def show_own_processes() -> bool:
    """A /proc of this process's own namespace alone. False where the host does not allow it."""
    flags = ctypes.c_ulong(MS_NOSUID | MS_NODEV | MS_NOEXEC)
    private = LIBC.mount(None, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None)
    return private == 0 and LIBC.mount(b"proc", b"/proc", b"proc", flags, None) == 0


def hide(path: bytes) -> bool:
    """Under an empty directory in memory, for this process only."""
    flags = ctypes.c_ulong(MS_NOSUID | MS_NODEV | MS_NOEXEC)
    private = LIBC.mount(None, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None)
    return private == 0 and LIBC.mount(b"tmpfs", path, b"tmpfs", flags, b"size=4096") == 0


def landlock_version() -> int:
    """Of the kernel's interface; 0 where it has none."""
    return max(LIBC.syscall(LANDLOCK_CREATE, None, 0, LANDLOCK_VERSION), 0)


def restrict_files(
    readable: list[str], writable: str = "", port: int = 0, scoped: bool = False
) -> int:
    """Landlock: of all files only `readable` can be read, and only /dev/null and the folder `writable` written.

    `port`: of TCP, the only one that can be connected to, where the interface has version 4. `scoped`: no
    signal to processes outside, and no abstract socket of theirs, from version 6 on.
    Returns the version of the interface, 0 where the kernel has none.
    """
    version = landlock_version()
    if not version:
        return 0
    handled = RIGHTS[min(version, len(RIGHTS) - 1)]
    network = BIND_AND_CONNECT if port and version >= NETWORK_VERSION else 0
    scope = SCOPE_SOCKETS_AND_SIGNALS if scoped and version >= SCOPE_VERSION else 0
    rules = ctypes.create_string_buffer(struct.pack("=QQQ", handled, network, scope), 24)
    ruleset = check(LIBC.syscall(LANDLOCK_CREATE, rules, 24, 0))
    read = READ_FILE | READ_DIRECTORY | EXECUTE
    write = read | WRITE_FILE | TRUNCATE
    allowed = [(path, read) for path in readable] + [("/dev/null", write)]
    if writable:
        allowed.append((writable, handled & ~DEVICES))
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
    if network:
        rule = ctypes.create_string_buffer(struct.pack("=QQ", CONNECT, port), 16)
        check(LIBC.syscall(LANDLOCK_ADD, ruleset, LANDLOCK_PORT, rule, 0))
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
