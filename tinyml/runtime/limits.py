"""How much of the machine this process may use, and how many cores there are.

Linux limits processes by control groups, one within the other: a container is one, and so are
services and jobs. Each of those that a process is in may have a limit, and the least one counts.
"""

from __future__ import annotations

import os
from pathlib import Path

_GROUPS, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_ONLINE = Path("/sys/devices/system/cpu/online")
_SETS = ("cpuset.cpus.effective", "cpuset.effective_cpus")  # of version 2, of version 1


def cores(groups: Path = _GROUPS, own: Path = _OWN) -> int:
    """Cores that the system lets this process use: by affinity, and by its groups' quotas."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity else os.cpu_count() or 1
    return _within_quotas(count, groups, own)


def all_cores(online: Path = _ONLINE, groups: Path = _GROUPS, own: Path = _OWN) -> int:
    """Cores of the machine, or of the container or job that is this process's machine.

    Those of its groups' sets and quotas, also those that its own affinity leaves out.
    """
    sets = [folder / name for folder in _folders("cpuset", groups, own) for name in _SETS]
    counts = [n for n in map(_numbered, (online, *sets)) if n]
    # without any it is not Linux, where some C libraries count what affinity leaves
    return _within_quotas(min(counts, default=os.cpu_count() or 1), groups, own)


def _within_quotas(count: int, groups: Path, own: Path) -> int:
    quotas = [_quota(folder) for folder in _folders("cpu", groups, own)]
    return max(1, int(min([count, *(quota for quota in quotas if quota is not None)])))


def _numbered(file: Path) -> int:
    """How many cores a file lists: 0-3,8 is five; 0 if it does not."""
    runs = [part.split("-") for part in ",".join(_words(file)).split(",")]
    if not all(number.isdecimal() for ends in runs for number in ends):
        return 0
    return sum(int(ends[-1]) - int(ends[0]) + 1 for ends in runs)


def memory(groups: Path = _GROUPS, own: Path = _OWN) -> int:
    """Bytes of memory that this process may hope for: the machine's, or its groups'."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for folder in _folders("memory", groups, own):
        limits = _words(folder / "memory.max") or _words(folder / "memory.limit_in_bytes")
        found += [int(limit) for limit in limits if limit.isdecimal()]  # not the word "max"
    return min(found)


def _quota(folder: Path) -> float | None:
    """Cores' worth of time that a group may use, or None for no limit."""
    words = _words(folder / "cpu.max") or [  # of version 2, of version 1
        *_words(folder / "cpu.cfs_quota_us"),
        *_words(folder / "cpu.cfs_period_us"),
    ]
    if len(words) == 2 and all(map(str.isdecimal, words)) and int(words[1]):  # not "max", not -1
        return int(words[0]) / int(words[1])
    return None


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except (OSError, ValueError):  # ValueError: no text
        return []


def _folders(controller: str, groups: Path, own: Path) -> list[Path]:
    """Those of the groups of this process, outermost first; some may not be there.

    In a container its own group may lie where the outermost one is outside.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:  # not Linux
        return []
    found: list[Path] = []
    for line in lines:  # 0::/PATH of version 2, and NUMBER:CONTROLLERS:/PATH of version 1
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        folder = groups / controller if controllers else groups
        found.append(folder)
        for name in path.split("/")[1:]:
            folder /= name
            found.append(folder)
    return found
