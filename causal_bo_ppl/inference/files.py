"""How is a file replaced as a whole or not at all? By a temporary file beside it and one rename.

The writer holds a lock on its temporary file. The system releases the lock when the process ends,
however it ends, so that a temporary file without a lock has no writer and the next write to the
same target may remove it. A process id would not do: ids are used again.
"""

import errno
import fcntl
import hashlib
import os
import platform
import re
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from causal_bo_ppl.errors import StoreError

PIECE = 2**24  # bytes in one call: an interrupt need not wait for the rest
NEW = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
FOUND = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS}
KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a symbolic link in a loop",
}


def write_whole(path: Path, pieces: Sequence[bytes | memoryview]) -> None:
    """Replace the file at `path` by these pieces, or leave everything as it was.

    Parameters
    ----------
    path:
        A resolved path, not a symbolic link. An existing file keeps its permissions.
    pieces:
        The bytes, written one after the other.

    Raises
    ------
    StoreError
        If the target is no regular file, or the system refuses a step. What was at `path`
        before is unchanged then and no temporary file remains.
    """
    mode = _require_target(path)
    remove_abandoned(path)
    try:
        while not _replace(path, pieces, mode):
            pass
    except OSError as error:
        size = sum(map(len, pieces))
        raise StoreError(
            f"cannot write {size:,} bytes to {str(path)!r}: {error.strerror or error}; "
            f"{_advice(error)}. Nothing was changed"
        ) from error
    _sync_directory(path)


def remove_abandoned(path: Path) -> None:
    """Remove temporary files of earlier writes to `path` from this host whose writer has ended.

    Files that are locked, belong to another user or bear another name are left alone. So is all
    that the system does not let us look at: this only tidies up, and never fails.
    """
    pattern = re.compile(re.escape(_prefix(path)) + r"[0-9a-f]{32}\.part")
    with suppress(OSError):
        for name in os.listdir(path.parent):
            if pattern.fullmatch(name):
                with suppress(OSError):
                    _remove_unlocked(path.parent / name)


def _remove_unlocked(part: Path) -> None:
    descriptor = os.open(part, FOUND)
    try:
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while the writer lives
            os.unlink(part)
    finally:
        os.close(descriptor)


def _prefix(path: Path) -> str:
    """Return how the names of temporary files for one target begin, written from this host.

    The name is hashed, because a file's name may be as long as a name can be. The host is part of
    it because some network file systems do not show a lock to other hosts.
    """
    names = (os.fsencode(path.name), platform.node().encode())
    parts = (hashlib.sha256(name).hexdigest()[:16] for name in names)
    return f".causal_bo_ppl-{'-'.join(parts)}-"


def _require_target(path: Path) -> int | None:
    """Return the permissions of an existing file, None where there is none yet."""
    try:
        found = os.lstat(path).st_mode
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = error.strerror
        raise StoreError(f"cannot write {str(path)!r}: {reason}; choose another path") from error
    if not stat.S_ISREG(found):
        kind = KINDS.get(stat.S_IFMT(found), "something else")
        advice = "choose another path"
        raise StoreError(f"cannot write {str(path)!r}: it is {kind}, no regular file; {advice}")
    return stat.S_IMODE(found) & 0o777


def _replace(path: Path, pieces: Sequence[bytes | memoryview], mode: int | None) -> bool:
    """Write a temporary file and rename it.

    Returns False where another writer removed the temporary file in the moment before it was
    locked; then nothing has been written yet.
    """
    part, descriptor = path.parent / f"{_prefix(path)}{uuid4().hex}.part", None
    try:
        descriptor = os.open(part, NEW, 0o666 if mode is None else mode)
        if not _lock_new(descriptor):
            return False
        if mode is not None:
            os.fchmod(descriptor, mode)
        for piece in pieces:
            _write_all(descriptor, memoryview(piece))
        os.fsync(descriptor)
        os.replace(part, path)
        return True
    except BaseException:  # an interrupt too
        with suppress(OSError):
            os.unlink(part)
        raise
    finally:
        if descriptor is not None:
            with suppress(OSError):  # what was written is already on the disk
                os.close(descriptor)


def _lock_new(descriptor: int) -> bool:
    """Lock a file that was just created; return False if another writer has removed it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks, where no writer can remove anything either
        return True
    return os.fstat(descriptor).st_nlink > 0


def _write_all(descriptor: int, piece: memoryview) -> None:
    at = 0
    while at < len(piece):
        at += os.write(descriptor, piece[at : at + PIECE])


def _sync_directory(path: Path) -> None:
    """Make the rename last through a loss of power, where the file system can."""
    try:
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # a directory may be open to writing but not to reading
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise StoreError(
                f"{str(path)!r} was written, but may not last through a loss of power: syncing its "
                f"directory failed ({error.strerror}); look at the disk, and write it again"
            ) from error
    finally:
        os.close(descriptor)


def _advice(error: OSError) -> str:
    if error.errno in NO_SPACE:
        return "free some space, or write to another disk; of a posterior, fewer draws need less"
    if error.errno in NOT_ALLOWED:
        return "choose a directory in which you may write"
    return "look at the disk, or write to another one"
