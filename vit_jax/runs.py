"""The run folder: its layout, config.json, digests and lock. Nothing here imports jax, so every tool can read runs.

runs/<name>/
    config.json      the config, the identity of the data, and the metadata of the data that the task needs
    metrics.jsonl    one line per log entry or evaluation
    summary.json     final and best metrics, written when the run ends
    checkpoints/<step>/{model,optimizer,ema}  Orbax trees
    digests/<step>.json    digests of the arrays of a checkpoint; written last: without it the checkpoint is incomplete
    plots/  samples/
    .lock            locked by the process that trains
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from .config import RunConfig, differences, from_dict, task_row, to_dict
from .config.formats import FORMAT, upgraded
from .errors import UserError


class Run:
    """A run's folder and the paths in it."""

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path).absolute()
        self.config_file = self.path / "config.json"
        self.metrics_file = self.path / "metrics.jsonl"
        self.summary_file = self.path / "summary.json"
        self.checkpoints = self.path / "checkpoints"
        self.digests = self.path / "digests"
        self.plots = self.path / "plots"
        self.samples = self.path / "samples"

    def __str__(self) -> str:
        """The path as a user would type it: relative if that is shorter."""
        relative = os.path.relpath(self.path)
        return relative if len(relative) < len(str(self.path)) else str(self.path)

    def exists(self) -> bool:
        """Whether the folder has a config.json."""
        return self.config_file.is_file()

    def create(self, record: dict[str, Any]) -> None:
        """Make the folder and write config.json from `record`, atomically."""
        for folder in (self.path, self.checkpoints, self.digests):
            folder.mkdir(parents=True, exist_ok=True)
        write_json(self.config_file, {"format": FORMAT, **record})

    def record(self) -> dict[str, Any]:
        """The content of config.json: `preset`, `config` (of a RunConfig), `data` (its identity), metadata of the data.

        Raises UserError if there is no run or its config.json is damaged.
        """
        if not self.exists():
            raise UserError(
                f"{self}: no run here (there is no config.json); give the folder of a run, such as runs/digits"
            )
        record = read_json(self.config_file)
        if "format" not in record:
            raise UserError(
                f"{self}: no run here (its config.json is another program's); "
                f"give the folder of a run, or start one from these weights with --init {self}"
            )
        if record["format"] not in range(1, FORMAT + 1):
            raise UserError(
                f"{self.config_file}: format {record['format']!r} is not {FORMAT} or older; "
                "read it with the version of vit-jax that wrote it"
            )
        try:
            metadata = (
                task_row(str(upgraded(record["config"]).get("task"))).metadata
                if isinstance(record.get("config"), dict)
                else {}
            )
        except UserError as error:
            raise UserError(
                f"{self.config_file}: {error}; restore the file, or read it with the version that wrote it"
            ) from error
        if missing := sorted({"preset", "config", "data", *metadata} - record.keys()):
            raise UserError(
                f"{self.config_file}: lacks {', '.join(missing)}; restore the file or start a new run with --name"
            )
        if damaged := [name for name, entry in metadata.items() if not entry.valid(record[name])]:
            raise UserError(
                f"{self.config_file}: its {damaged[0]} is damaged; restore the file or start a new run with --name"
            )
        return record

    def config(self) -> RunConfig:
        """The run's config. Raises UserError as `record` does."""
        return from_dict(RunConfig, self.record()["config"])

    def summary(self) -> dict[str, Any] | None:
        """summary.json, or None while the run has not ended."""
        return read_json(self.summary_file) if self.summary_file.is_file() else None

    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl, without incomplete lines, such as the last one after a crash."""
        rows = []
        for line in self.metrics_file.read_bytes().splitlines() if self.metrics_file.is_file() else ():
            with contextlib.suppress(ValueError):
                rows.append(json.loads(line))
        return [row for row in rows if isinstance(row, dict) and {"kind", "step"} <= row.keys()]

    def drop_metrics(self, drop: Callable[[dict[str, Any]], bool]) -> None:
        """Delete the rows of metrics.jsonl for which `drop` is true, atomically."""
        rows = self.metrics()
        kept = [row for row in rows if not drop(row)]
        if len(kept) < len(rows):
            write_text(self.metrics_file, "".join(json.dumps(row) + "\n" for row in kept))

    def digest_file(self, step: int) -> Path:
        """The path of the digests of a step."""
        return self.digests / f"{step}.json"

    def steps(self) -> list[int]:
        """Steps with a non-empty checkpoint folder or a digest file, newest first; other names are ignored."""
        folders = [p.name for p in self.checkpoints.glob("*") if p.is_dir() and any(p.iterdir())]
        names = {*folders, *(p.stem for p in self.digests.glob("*.json"))}
        return sorted((int(n) for n in names if n.isdecimal() and str(int(n)) == n), reverse=True)

    def complete_steps(self) -> list[int]:
        """Steps that have both a checkpoint folder and a digest file, newest first."""
        return [s for s in self.steps() if (self.checkpoints / str(s)).is_dir() and self.digest_file(s).is_file()]

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """A context in which this process has locked the folder. Raises UserError naming a process that has done so."""
        lock_file, held = self.path / ".lock", False
        while not held:
            self.path.mkdir(parents=True, exist_ok=True)
            with open(lock_file, "a+", encoding="utf-8") as file:
                if not _try_lock(file):
                    file.seek(0)
                    raise UserError(
                        f"{self}: in use by process {file.read().strip() or 'unknown'}; "
                        "wait for it, end it, or choose another --name"
                    )
                # Another process whose run failed to start may have removed the file in between: then lock a new one.
                held = lock_file.exists() and os.path.samestat(os.fstat(file.fileno()), lock_file.stat())
                if held:
                    file.seek(0)
                    file.truncate()
                    file.write(str(os.getpid()))
                    file.flush()
                    yield


def _try_lock(file: Any) -> bool:
    """Lock a file until it is closed or the process ends; False if another process has locked it."""
    try:
        if os.name == "nt":
            import msvcrt

            # A byte far behind the process id, which others can then still read.
            file.seek(1 << 20)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def choose(run: RunConfig, name: str, named: bool, seeds: int = 0) -> Run:
    """The folder for this run (or this group of `seeds` runs): one that has the same run already, or a new one.

    If the user did not name the folder (`named`), numbers are tried (digits, digits-2, ...) until a folder is free or
    has the same run. Raises UserError if a named folder has another run, listing the fields that differ, and on any
    damaged config.json, because it may be that of this run.
    """
    number = 1
    while True:
        folder = Run(Path(run.dir) / (name if number == 1 else f"{name}-{number}"))
        if folder.exists():
            read_json(folder.config_file)
        try:
            (_fits_group if seeds else _fits)(folder, run)
        except UserError:
            if named:
                raise
            number += 1
        else:
            return folder


_BEGUN = (".lock", "config.json.tmp")


def _fits(folder: Run, run: RunConfig) -> None:
    """Raise UserError unless the folder is free or has the same run."""
    if folder.exists():
        same_identity(folder, run)
    elif folder.path.exists() and (
        not folder.path.is_dir() or any(p.is_file() and p.name not in _BEGUN for p in folder.path.rglob("*"))
    ):
        # A run that was killed before it wrote config.json leaves empty folders and the files of _BEGUN: that is free.
        raise UserError(f"{folder}: exists and is not a run; choose another --name")


def _fits_group(folder: Run, run: RunConfig) -> None:
    """Raise UserError unless the folder is free or has runs that differ from this one only in the seed."""
    if folder.exists():
        raise UserError(f"{folder}: holds a single run, not one per seed; choose another --name")
    members = sorted(folder.path.glob("seed-*/config.json"))
    if not members:
        _fits(folder, run)
    for file in members:
        member = Run(file.parent)
        same_identity(member, replace(run, seed=member.config().seed))


def same_identity(folder: Run, run: RunConfig) -> None:
    """Raise UserError, listing the fields that differ, unless the folder has the same run."""
    changed = differences(folder.config(), run)
    if changed:
        fields = ", ".join(f"{k} {old!r} -> {new!r}" for k, (old, new) in changed.items())
        raise UserError(
            f"{folder}: holds another run, which differs in {fields}; "
            "choose another --name, or leave these as they were"
        )


def find(text: str, runs_dir: str = "runs") -> Run:
    """The run at a path, or with a name inside `runs_dir`. Raises UserError if there is none."""
    for path in (Path(text), Path(runs_dir) / text):
        if Run(path).exists():
            return Run(path)
    if Path(text).is_file():
        raise UserError(f"{text}: is a file and no run; to start a run from weights, train with --init {text}")
    root = Path(runs_dir)
    known = sorted(p.parent.name for p in root.glob("*/config.json")) if root.is_dir() else []
    hint = f"{runs_dir}/ holds {', '.join(known)}" if known else f"{runs_dir}/ holds none: train one, or give its path"
    raise UserError(f"{text}: no run here; {hint}")


def is_foreign(text: str, runs_dir: str = "runs") -> bool:
    """Whether a text is the path of a weight file or folder, and not a run (by path, or by name inside `runs_dir`).

    Raises UserError on a checkpoint inside a run's folder, because only the run states the config of its network.
    """
    here = Run(text)
    for folder in here.path.parents[:3]:
        if here.path.is_dir() and here.path.is_relative_to(Run(folder).checkpoints) and Run(folder).exists():
            step = here.path.relative_to(folder).parts[1:2]
            chosen = f" --step {step[0]}" if step else ""
            raise UserError(
                f"{text}: is inside the run {Run(folder)}; give {Run(folder)}, or a file that "
                f"`python -m convert {shlex.quote(str(Run(folder)))} X.safetensors{chosen}` writes"
            )
    if here.exists():  # other libraries have a config.json, too
        return not here.checkpoints.is_dir()
    return text.startswith("hf://") or (Path(text).exists() and not Run(Path(runs_dir) / text).exists())


# ------------------------------------------------------------------------------------- digests


def array_digest(array: np.ndarray) -> str:
    """BLAKE2b of an array's dtype, shape and little-endian bytes in C order, as 32 hexadecimal digits."""
    array = np.ascontiguousarray(array).reshape(array.shape)  # ascontiguousarray makes 0-d arrays 1-d
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    digest = hashlib.blake2b(f"{array.dtype.name}|{list(array.shape)}|".encode(), digest_size=16)
    digest.update(array.reshape(-1).view(np.uint8))
    return digest.hexdigest()


def text_digest(value: Any) -> str:
    """BLAKE2b of a JSON value in canonical form (sorted keys), as 32 hexadecimal digits."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{'a': {'b': x}} as {'a.b': x}. Raises ValueError on names that contain dots, which could collide."""
    out: dict[str, Any] = {}
    for key, value in tree.items():
        if not isinstance(key, str) or "." in key or not key:
            raise ValueError(f"{prefix}{key!r}: names in a tree are non-empty strings without dots")
        out |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return out


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """{'a.b': x} as {'a': {'b': x}}."""
    out: dict[str, Any] = {}
    for name, value in flat.items():
        *path, leaf = name.split(".")
        node = out
        for key in path:
            node = node.setdefault(key, {})
        node[leaf] = value
    return out


# ---------------------------------------------------------------------------------- small files


def write_json(path: Path, value: Any) -> None:
    """Write a JSON value to a file, atomically."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file atomically: even after a power cut or on a full disk it has the old content or the new one."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file. Raises UserError if it has none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path}: cannot be read as JSON ({error}); restore the file or start a new run with --name"
        ) from error
    if not isinstance(value, dict):
        raise UserError(f"{path}: holds no JSON object; restore the file or start a new run with --name")
    return value


def sync_file(path: Path) -> None:
    """Have the disk hold a file that was written, so that it may be renamed over another."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Make renames inside a folder durable (a no-op on Windows)."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def record_of(run: RunConfig, preset: str, **rest: Any) -> dict[str, Any]:
    """The content of config.json for a new run."""
    return {"preset": preset, "config": to_dict(run), **rest}
