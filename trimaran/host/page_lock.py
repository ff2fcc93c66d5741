"""Locks memory that this process has mapped, so that a device copies from it and to it by itself.

A copy of other memory passes through a small buffer of the driver's, which takes several times as long.

    cuda   cudaHostRegister, by torch.cuda.cudart()
    npu    aclrtHostRegisterV2 of CANN's libascendcl.so, from CANN 8.5 on; of memory that was mapped it
           needs a Linux newer than 5.10. torch_npu 2.10.0.post4 uses it inside, without a name in Python.

Neither has run on a device of ours. Where one is refused, copies are right and slow, and a line says so.
"""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

logger = logging.getLogger(__name__)

Unlock = Callable[[], object]
"""Knows the address only: it may be kept by the memory itself."""

CUDA_PORTABLE = 1
"""cudaHostRegisterPortable: for every device of this process."""
ACL_MAPPED, ACL_PINNED = 0x2, 0x10000000
"""ACL_HOST_REG_MAPPED and ACL_HOST_REG_PINNED, as CANN's acl_rt.h has them."""


def lock_pages(kind: str, address: int, num_bytes: int) -> Unlock | None:
    """`kind`: cuda or npu, current in the calling thread. `address`: of a page. None where it is refused."""
    began = time.monotonic()
    try:
        code, unlock = LOCKS[kind](address, num_bytes)
    except (AttributeError, OSError, RuntimeError) as error:
        code, unlock = str(error), None
    if code:
        logger.warning(
            "%.0f MiB of host memory are not locked for %s (%s): weights are copied more slowly",
            *(num_bytes / 2**20, kind, code),
        )
        return None
    logger.info(
        "%.0f MiB of host memory were locked for %s in %.1f s",
        *(num_bytes / 2**20, kind, time.monotonic() - began),
    )
    return unlock


def _lock_cuda(address: int, num_bytes: int) -> tuple[int, Unlock]:
    import torch

    runtime: Any = torch.cuda
    cudart = runtime.cudart()
    code = int(cudart.cudaHostRegister(address, num_bytes, CUDA_PORTABLE))
    if code:
        # CUDA keeps the refusal as its last error, and torch raises that after its next kernel.
        with suppress(RuntimeError):
            torch.zeros(1, device="cuda")
    return code, lambda: cudart.cudaHostUnregister(address)


def _lock_npu(address: int, num_bytes: int) -> tuple[int, Unlock]:
    acl = ctypes.CDLL("libascendcl.so")
    place, size = ctypes.c_void_p(address), ctypes.c_uint64(num_bytes)
    code = acl.aclrtHostRegisterV2(place, size, ctypes.c_uint32(ACL_MAPPED | ACL_PINNED))
    return code, lambda: acl.aclrtHostUnregister(place)


LOCKS: dict[str, Callable[[int, int], tuple[int, Unlock]]] = {"cuda": _lock_cuda, "npu": _lock_npu}
"""Each gives the vendor's code, 0 for success."""
