"""The system calls that a sandboxed program may make, as a filter for the kernel. Pure.

All others fail with EPERM: no socket, no new process, no program started, no namespace, no mount,
no tracing, no keys, no change of mode or owner, no signal to others. The numbers are Linux'
(asm/unistd_64.h, asm-generic/unistd.h); the layout is that of linux/filter.h and linux/seccomp.h.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Mapping, Sequence

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_CALLS = """
read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, preadv 295 69,
pwritev 296 70, lseek 8 62, close 3 57, close_range 436 436, dup 32 23, dup2 33 -, dup3 292 24,
pipe 22 -, pipe2 293 59, fstat 5 80, stat 4 -, lstat 6 -, newfstatat 262 79, statx 332 291,
statfs 137 43, fstatfs 138 44, access 21 -, faccessat 269 48, faccessat2 439 439, readlink 89 -,
readlinkat 267 78, getdents64 217 61, getcwd 79 17, chdir 80 49, fchdir 81 50, fsync 74 82,
fdatasync 75 83, ftruncate 77 46, flock 73 32, sendfile 40 71, fadvise64 221 223, poll 7 -,
ppoll 271 73, select 23 -, pselect6 270 72, epoll_create1 291 20, epoll_ctl 233 21,
epoll_wait 232 -, epoll_pwait 281 22, eventfd2 290 19, recvfrom 45 207, mmap 9 222, munmap 11 215,
mprotect 10 226, mremap 25 216, madvise 28 233, brk 12 214, mincore 27 232, membarrier 324 283,
rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigpending 127 136,
rt_sigsuspend 130 133, rt_sigtimedwait 128 137, sigaltstack 131 132, pause 34 -, alarm 37 -,
setitimer 38 103, getitimer 36 102, restart_syscall 219 128, futex 202 98,
set_robust_list 273 99, set_tid_address 218 96, rseq 334 293, sched_yield 24 124,
sched_getaffinity 204 123, exit 60 93, exit_group 231 94, arch_prctl 158 -, wait4 61 260,
waitid 247 95, clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115,
nanosleep 35 101, gettimeofday 96 169, time 201 -, times 100 153, getrusage 98 165,
getrandom 318 278, uname 63 160, sysinfo 99 179, getcpu 309 168, umask 95 166, getpid 39 172,
getppid 110 173, gettid 186 178, getuid 102 174, geteuid 107 175, getgid 104 176, getegid 108 177,
getgroups 115 158, getresuid 118 148, getresgid 120 150, getpgrp 111 -, getpgid 121 155,
getsid 124 156
"""
_CHECKED_CALLS = """
open 2 -, openat 257 56, clone 56 220, clone3 435 435, prlimit64 302 261, ioctl 16 29,
fcntl 72 25, socketpair 53 199, sendto 44 206
"""

_SOCKET = "socket 41 198"
_FLAGS_OF = {"sendto 44 206": 3, "sendmsg 46 211": 2, "sendmmsg 307 269": 3}
"""Calls that can open a connection by themselves, and which of their arguments says so."""
_RING = "io_uring_setup 425 425"

_LOAD, _AND, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = (
    0x20,
    0x54,
    0x15,
    0x35,
    0x45,
    0x06,
)
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16
"""Where struct seccomp_data has them."""
_KILL, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000

_CLONE_THREAD = 0x00010000
_WRITE_FLAGS = 0o1 | 0o2 | 0o100 | 0o1000
"""O_WRONLY, O_RDWR, O_CREAT, O_TRUNC."""
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10
_SOCK_STREAM, _SOCK_TYPES, _IPPROTO_TCP = 1, 0xF, 6
_FAST_OPEN = 0x20000000
_OTHER_ABI = 0x40000000
"""Where the numbers of x32 begin, which no other machine has."""
_TERMINAL_ATTRIBUTES, _BYTES_READABLE, _CLOSE_ON_EXEC, _NONBLOCKING = 0x5401, 0x541B, 0x5451, 0x5421
_DUPLICATE, _DUPLICATE_CLOSE_ON_EXEC = 0, 1030
_FCNTL_FLAGS_AND_LOCKS = (1, 2, 3, 4, 5, 6, 7)


def make_filter(machine: str, files_guarded: bool) -> bytes:
    """struct sock_filter[] for `machine`. Where nothing else guards files, they can be opened for
    reading only. Raises KeyError for a machine that is not known."""
    column = list(AUDIT_ARCH).index(machine)
    program = [
        _statement(_LOAD, _ARCH),
        _jump(_JUMP_EQUAL, AUDIT_ARCH[machine], 1, 0),
        _statement(_RETURN, _KILL),
        _statement(_LOAD, _NUMBER),
    ]
    for number in _numbers(_CALLS, column).values():
        program += [_jump(_JUMP_EQUAL, number, 0, 1), _statement(_RETURN, _ALLOW)]
    for name, number in _numbers(_CHECKED_CALLS, column).items():
        block = _checks(name, files_guarded)
        program += [_jump(_JUMP_EQUAL, number, 0, len(block)), *block]
    program.append(_statement(_RETURN, _ERRNO | errno.EPERM))
    return b"".join(program)


def make_network_filter(machine: str) -> bytes:
    """struct sock_filter[] for a program that may do anything but speak otherwise than over TCP, so that what
    bounds its TCP bounds all of it. Raises KeyError for a machine that is not known."""
    column = list(AUDIT_ARCH).index(machine)
    number = {
        row: next(iter(_numbers(row, column).values())) for row in (_SOCKET, _RING, *_FLAGS_OF)
    }
    denied = _statement(_RETURN, _ERRNO | errno.EPERM)
    program = [
        _statement(_LOAD, _ARCH),
        _jump(_JUMP_EQUAL, AUDIT_ARCH[machine], 1, 0),
        _statement(_RETURN, _KILL),
        _statement(_LOAD, _NUMBER),
        _jump(_JUMP_AT_LEAST, _OTHER_ABI, 0, 1),
        denied,
        _jump(_JUMP_EQUAL, number[_RING], 0, 1),  # it makes sockets out of a filter's sight
        denied,
    ]
    for row, argument in _FLAGS_OF.items():
        block = _unless_any_bit(argument, _FAST_OPEN, errno.EPERM)
        program += [_jump(_JUMP_EQUAL, number[row], 0, len(block)), *block]
    program += [
        _jump(_JUMP_EQUAL, number[_SOCKET], 1, 0),
        _statement(_RETURN, _ALLOW),
        *_only_tcp(),
    ]
    return b"".join(program)


def _only_tcp() -> list[bytes]:
    """Of `socket`: its domain, its type without flags, its protocol."""
    unknown = _statement(_RETURN, _ERRNO | errno.EAFNOSUPPORT)
    return [
        _statement(_LOAD, _ARGUMENTS),
        _jump(_JUMP_EQUAL, _AF_INET, 2, 0),
        _jump(_JUMP_EQUAL, _AF_INET6, 1, 0),
        unknown,
        _statement(_LOAD, _ARGUMENTS + 8),
        _statement(_AND, _SOCK_TYPES),
        _jump(_JUMP_EQUAL, _SOCK_STREAM, 1, 0),
        unknown,
        _statement(_LOAD, _ARGUMENTS + 8 * 2),
        _jump(_JUMP_EQUAL, 0, 2, 0),
        _jump(_JUMP_EQUAL, _IPPROTO_TCP, 1, 0),
        unknown,
        _statement(_RETURN, _ALLOW),
    ]


def _checks(name: str, files_guarded: bool) -> list[bytes]:
    """What is asked about the arguments of a call; each block returns."""
    match name:
        case "open" | "openat" if not files_guarded:
            return _unless_any_bit(1 if name == "open" else 2, _WRITE_FLAGS, errno.EROFS)
        case "open" | "openat":
            return [_statement(_RETURN, _ALLOW)]
        case "clone":  # threads, and nothing else
            return [
                _statement(_LOAD, _ARGUMENTS),
                _jump(_JUMP_ANY_BIT, _CLONE_THREAD, 0, 1),
                _statement(_RETURN, _ALLOW),
                _statement(_RETURN, _ERRNO | errno.EPERM),
            ]
        case "clone3":  # its flags are out of a filter's sight; libc then uses clone
            return [_statement(_RETURN, _ERRNO | errno.ENOSYS)]
        case "prlimit64":  # of the process itself
            return _only(0, (0,))
        case "ioctl":
            return _only(1, (_TERMINAL_ATTRIBUTES, _BYTES_READABLE, _CLOSE_ON_EXEC, _NONBLOCKING))
        case "fcntl":  # not the commands that direct signals at a process
            return _only(1, (_DUPLICATE, _DUPLICATE_CLOSE_ON_EXEC, *_FCNTL_FLAGS_AND_LOCKS))
        case "socketpair":  # asyncio's own pipe
            return _only(0, (_AF_UNIX,))
        case _:  # sendto without an address, in both halves of the pointer
            return [
                _statement(_LOAD, _ARGUMENTS + 8 * 4),
                _jump(_JUMP_EQUAL, 0, 0, 3),
                _statement(_LOAD, _ARGUMENTS + 8 * 4 + 4),
                _jump(_JUMP_EQUAL, 0, 0, 1),
                _statement(_RETURN, _ALLOW),
                _statement(_RETURN, _ERRNO | errno.EPERM),
            ]


def _only(argument: int, values: Sequence[int]) -> list[bytes]:
    block = [_statement(_LOAD, _ARGUMENTS + 8 * argument)]
    for value in values:
        block += [_jump(_JUMP_EQUAL, value, 0, 1), _statement(_RETURN, _ALLOW)]
    return [*block, _statement(_RETURN, _ERRNO | errno.EPERM)]


def _unless_any_bit(argument: int, bits: int, error: int) -> list[bytes]:
    return [
        _statement(_LOAD, _ARGUMENTS + 8 * argument),
        _jump(_JUMP_ANY_BIT, bits, 0, 1),
        _statement(_RETURN, _ERRNO | error),
        _statement(_RETURN, _ALLOW),
    ]


def _numbers(table: str, column: int) -> Mapping[str, int]:
    rows = [row.split() for row in table.split(",")]
    return {row[0]: int(row[1 + column]) for row in rows if row[1 + column] != "-"}


def _statement(code: int, value: int) -> bytes:
    return struct.pack("<HBBI", code, 0, 0, value)


def _jump(code: int, value: int, if_true: int, if_false: int) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)
