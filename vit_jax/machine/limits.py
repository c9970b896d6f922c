"""What this process may use: of the machine, of its control groups (Linux, versions 2 and 1), by its own limits.

Containers and services set limits by control groups.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

ROOT, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def host_memory() -> int:
    """The bytes that this process may use: of the machine, its control group or its own limit; 0 if unknown."""
    limits = [_physical(), *memory_limits(), _own()]
    return min((limit for limit in limits if limit > 0), default=0)


def _physical() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return 0


def _own() -> int:
    try:
        import resource
    except ImportError:  # Windows
        return 0
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return limit if limit != resource.RLIM_INFINITY else 0


def memory_limits(root: Path = ROOT, own: Path = OWN) -> list[int]:
    """The limits of memory, in bytes."""
    found = []
    for _, text in _settings("memory.max", "memory", "memory.limit_in_bytes", root, own):
        found += [int(text)] if text.isdecimal() and int(text) < 2**60 else []  # max, or a number for "none"
    return found


def core_limits(root: Path = ROOT, own: Path = OWN) -> list[float]:
    """The limits of CPU time, as numbers of cores."""
    found = []
    for file, text in _settings("cpu.max", "cpu", "cpu.cfs_quota_us", root, own):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):  # "max 100000" is no limit
            if file.name == "cpu.cfs_quota_us":
                text += " " + (file.parent / "cpu.cfs_period_us").read_text()
            quota, period = map(int, text.split())
            found += [quota / period] if quota > 0 else []  # -1 is none
    return found


def _settings(name: str, controller: str, older: str, root: Path, own: Path) -> Iterator[tuple[Path, str]]:
    """(file, its text) of a setting in all groups that this process is in: `name`, or `older` of a controller."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        lines = []
    folders = [Path(line.rpartition(":")[2].lstrip("/")) for line in lines]
    files: dict[Path, None] = {}
    for folder in (Path(), *folders):
        for place in (folder, *folder.parents):
            files |= {root / place / name: None, root / controller / place / older: None}
    for file in files:
        with contextlib.suppress(OSError):
            yield file, file.read_text().strip()
