"""A disk cache of bytes by content key, which may be shared by processes and may be damaged.

An entry is one file: the data, then the SHA-256 of the data. A trailer rather than a second
file keeps an entry atomic, and a loader of shared objects ignores bytes after the end. Whatever
is cut short or changed no longer fits its trailer and counts as missing. A cache that cannot be
written costs time, never a run: entries then go to a temporary folder of this process. What has
not been read for longest makes room for what is new.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
import warnings
from pathlib import Path

_TRAILER = hashlib.sha256().digest_size
_FOLDERS = 256  # so that none gets long
_MOST = 1 << 30  # bytes of all entries, evenly over the folders
_SELDOM = 16  # one of so many new entries makes room: to look takes longer than to write
_DAY = 24 * 3600.0  # seconds: how exactly it is known when an entry was read


def key(*parts: str | bytes) -> str:
    """A name for `parts`, in hexadecimal; different parts have different names."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(b"%d:" % len(data))  # so that ("ab", "c") differs from ("a", "bc")
        digest.update(data)
    return digest.hexdigest()


class DiskCache:
    """Entries in a folder, or (without one) in a temporary folder of this process."""

    def __init__(self, folder: Path | None) -> None:
        # "~" stays in a path when the user has no home: then there is no place that lasts.
        self.folder = None if folder is None or folder.parts[:1] == ("~",) else folder
        self._temporary: Path | None = None

    def get(self, key: str, suffix: str) -> bytes | None:
        """The data of an entry, or None if there is no sound one."""
        found = self._read(key, suffix)
        return found[1] if found else None

    def path(self, key: str, suffix: str) -> Path | None:
        """The file of an entry (data, then trailer), or None if there is no sound one."""
        found = self._read(key, suffix)
        return found[0] if found else None

    def put(self, key: str, suffix: str, data: bytes) -> Path:
        """Write an entry and return its file."""
        if self.folder is not None and self._temporary is None:
            try:
                place = _write(_place(self.folder, key, suffix), data)
            except OSError as error:
                self._announce(error)
            else:
                if int(key[-2:], 16) % _SELDOM == 0:
                    _make_room(place)
                return place
        if self._temporary is None:
            self._temporary = _temporary_folder()
        return _write(_place(self._temporary, key, suffix), data)

    def _read(self, key: str, suffix: str) -> tuple[Path, bytes] | None:
        for folder in (self._temporary, self.folder):
            if folder is not None:
                place = _place(folder, key, suffix)
                data = _read(place)
                if data is not None:
                    return place, data
        return None

    def _announce(self, error: OSError) -> None:
        warnings.warn(
            f"the disk cache {self.folder} cannot be written ({error.strerror or error}); this "
            "process keeps its compiled kernels in a temporary folder. TINYML_CACHE names another",
            RuntimeWarning,
            stacklevel=3,
        )


def _place(folder: Path, key: str, suffix: str) -> Path:
    return folder / key[:2] / (key[2:] + suffix)


def _read(place: Path) -> bytes | None:
    """The data of a file with a trailer; a file that does not fit its trailer is removed."""
    try:
        with open(place, "rb") as file:
            opened = os.fstat(file.fileno())
            content = file.read()
    except OSError:
        return None
    data, trailer = content[:-_TRAILER], content[-_TRAILER:]
    if hashlib.sha256(data).digest() == trailer:
        if time.time() - opened.st_mtime > _DAY:
            with contextlib.suppress(OSError):  # it may be gone, or not ours to change
                os.utime(place)
        return data
    with contextlib.suppress(OSError):
        if os.path.samestat(opened, os.stat(place)):  # not the repair of another process
            os.unlink(place)
    return None


def _write(place: Path, data: bytes) -> Path:
    """Write data and trailer."""
    place.parent.mkdir(parents=True, exist_ok=True)
    write_whole(place, data, hashlib.sha256(data).digest(), private=True)
    return place


def _make_room(new: Path) -> None:
    """Remove what was not read for longest from the folder of `new`, if that holds too much."""
    with contextlib.suppress(OSError), os.scandir(new.parent) as entries:
        found = [(e.stat().st_mtime, e.stat().st_size, e.path) for e in entries]
        surplus = sum(size for _, size, _ in found) - _MOST // _FOLDERS
        for _, size, path in sorted(found):
            if surplus <= 0:
                break
            if path != str(new):
                os.unlink(path)
                surplus -= size


def _temporary_folder() -> Path:
    from multiprocessing.util import Finalize  # a worker of multiprocessing runs no atexit

    folder = tempfile.mkdtemp(prefix="tinyml-")
    Finalize(None, shutil.rmtree, (folder, True), exitpriority=0)  # not in a fork that shares it
    return Path(folder)


# ---- files that appear complete or not at all: they are written elsewhere, and then moved ----


def write_whole(path: Path, *parts: bytes, private: bool = False, lasting: bool = False) -> None:
    """Write a file of these parts, for everybody whom the umask admits unless it is `private`.

    `lasting`: it is on the disk, and not just on its way there, when this returns.
    """
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    except OSError as error:
        error.filename = str(path)  # what was asked for
        raise
    try:
        with open(handle, "wb") as file:
            file.writelines(parts)
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        if not private:  # mkstemp's files are for their owner only
            os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
