"""How a process of root becomes another user, and keeps of root's rights the two that commands are run as root for.

The folder of a service lies where only root may go (`/var/lib/private`, for a user that systemd makes), a backup of it
goes to a disk that only root may write, and a port may be below 1024. Nothing in Python's library keeps single
capabilities (capabilities(7)), so that the system calls are made here.
"""

import ctypes
import os
from typing import Final

_DAC_OVERRIDE: Final = 1
"""Pass through closed folders, read and write closed files. What is made is still the new user's."""
_NET_BIND_SERVICE: Final = 10
_KEPT: Final = (_DAC_OVERRIDE, _NET_BIND_SERVICE)

_VERSION_3: Final = 0x20080522
_PR_SET_KEEPCAPS: Final = 8
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_RAISE: Final = 2


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def become(uid: int, gid: int) -> None:
    """Make this process one of that user and group, for good, and of no other group. Programs that it starts have the
    same rights. To be called before any thread is begun, since rights are a thread's own. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = _Header(_VERSION_3, 0), (_Sets * 2)()
    _checked(libc.capget(ctypes.byref(header), sets))
    kept = [one for one in _KEPT if sets[0].permitted >> one & 1]
    _checked(libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0))
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    low = sum(1 << one for one in kept)
    sets[0], sets[1] = _Sets(low, low, low), _Sets(0, 0, 0)
    _checked(libc.capset(ctypes.byref(header), sets))
    for one in kept:
        _checked(libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, one, 0, 0))


def _checked(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
