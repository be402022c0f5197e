"""Files that appear complete or not at all: they are written beside their place and then moved."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


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
