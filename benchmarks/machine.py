"""The facts that a figure means nothing without: processor, versions, commit, date, flags."""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def facts() -> dict[str, Any]:
    """Where and on what this was measured."""
    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "cpu": cpu_model(),
        "cpus": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": sys.version.split()[0],
        "compiler": compiler(),
        "load before": [round(load, 2) for load in os.getloadavg()],
    }


def commit() -> str:
    """The commit of this checkout, and whether files were changed since."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=10"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def cpu_model() -> str:
    """The processor's name for itself; family and model where a virtual machine hides it."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    parts: dict[str, str] = dict(re.findall(r"^([\w ]+?)\s*:\s*(.*)$", text, re.MULTILINE))
    name = parts.get("model name", platform.machine())
    if "cpu family" in parts and "model" in parts:
        name += f" (family {parts['cpu family']}, model {parts['model']})"
    return name


def compiler() -> str:
    """The C compiler that tinyml found, and its flags."""
    from tinyml.device import open_device

    found = open_device("CPU").machine.compiler  # type: ignore[attr-defined]
    name = str(found.version).splitlines()[0]
    return f"{name}: {' '.join(found.flags)}"


def slug(name: str) -> str:
    """A name as part of a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
