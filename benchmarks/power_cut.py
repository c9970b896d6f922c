"""Cut the power of a training run at many moments, on paper, and resume what a disk would then hold.

    python -m benchmarks.power_cut [--cuts 300] [--lives 12] [--seed 0]

The training command runs under strace, which notes every write, sync, rename, creation and deletion in its folder. From
these the disk is computed at moments drawn among them: what was synced (a file's content by fsync of the file, its name
by fsync of the folder) is there, and of all else, in three ways: nothing; all names, but no content; a random part of
the names and of the writes. Each is made a folder, in which the readers of `--resume` must find the newest save that
had returned, or one that was then being written, and config.json and the log as that save recorded them; before the
first save had returned, maybe none. In some of them the same command then goes on to its end, which must be that of a
run without a cut, bit for bit, as in benchmarks.endurance. Exits with 1 if anything differs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout's own code, however this is started

from benchmarks.endurance import COMMAND, IMPORTED, VARIANTS, Watch, differences, live, whole, workplace
from benchmarks.machine import describe, heading
from vit_jax.runs import Run

TRACED = ("each epoch", "each step, in a thread")
CALLS = (
    "openat,open,creat,lseek,write,pwrite64,writev,pwritev,pwritev2,fsync,fdatasync,sync,syncfs,sync_file_range,msync,"
    "rename,renameat,renameat2,unlink,unlinkat,rmdir,mkdir,mkdirat,ftruncate,truncate,link,linkat,symlink,symlinkat,"
    "fallocate,copy_file_range,sendfile"
)
LINE = re.compile(
    r"(?P<at>[\d.]+) (?P<call>\w+)\((?P<args>.*)\)\s+= (?P<result>-?\d+)(?:<(?P<path>[^>]*)>)?.*<(?P<took>[\d.]+)>"
)
WAYS = ("nothing that was not synced", "names, but no content that was not synced", "a random part of it")


@dataclass(frozen=True)
class Event:
    """A call that changed a file or a folder, or synced it. Paths are absolute."""

    call: str  # "create", "truncate", "write", "sync", "mkdir", "rename", "remove"
    path: str
    target: str = ""  # of a rename
    data: bytes = b""  # of a write
    place: int = 0  # of a write, where it begins; of a truncate, the new length


# ------------------------------------------------------------------------------ the trace


def traced(place: Path, words: list[str]) -> list[Event]:
    """Train in a folder, in a process of its own under strace; what it did there. Exits if it fails."""
    trace = place.with_name(f"{place.name}-trace")
    trace.mkdir()
    (place / "runs").parent.mkdir(parents=True, exist_ok=True)
    # A file for each thread, with times and durations, all strings as numbers, and the path of each open file.
    strace = f"strace -ff --seccomp-bpf -ttt -T -y -xx -s 100000000 -e trace={CALLS} -o {trace}/thread"
    command = [*strace.split(), sys.executable, "-m", "vit_jax.train", *words]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"the traced run failed:\n{done.stdout}{done.stderr}")
    lines = (line for file in sorted(trace.iterdir()) for line in file.read_text().splitlines())
    return events(lines, str(place))


def events(lines: Iterator[str], root: str) -> list[Event]:
    """The events below a folder, in order: a sync counts when it returns, all else when it is called."""
    calls = []
    for line in lines:
        if (match := LINE.match(line)) and int(match["result"]) >= 0:
            at = float(match["at"]) + float(match["took"]) * (match["call"] in ("fsync", "fdatasync"))
            calls.append((at, match))
    open_files: dict[str, list[Any]] = {}  # by number: [path, offset, whether it appends]
    sizes: dict[str, int] = {}
    found: list[Event] = []
    for _, match in sorted(calls, key=lambda each: each[0]):
        for event in _event(match, open_files, sizes):
            if event.path == root or event.path.startswith(f"{root}/"):
                found.append(event)
    return found


def _text(escaped: str) -> bytes:
    r"""\x61\x62 as b"ab"."""
    return bytes.fromhex(escaped.replace("\\x", ""))


def _event(match: re.Match[str], open_files: dict[str, list[Any]], sizes: dict[str, int]) -> Iterator[Event]:
    """The events of a call, which is a line of strace; keeps account of offsets and lengths."""
    call, args = match["call"], match["args"]
    strings = [_text(each) for each in re.findall(r'"((?:\\x[0-9a-f]{2})*)"', args)]
    folders = [_text(each).decode() for each in re.findall(r"<((?:\\x[0-9a-f]{2})+)>", args)]
    number = re.match(r"\d+", args)

    def paths() -> list[str]:
        return [os.path.join(folder, name.decode()) for folder, name in zip(folders or [""], strings, strict=False)]

    if call in ("openat", "open", "creat"):
        path = _text(match["path"] or "").decode(errors="replace")
        open_files[match["result"]] = [path, 0, "O_APPEND" in args]
        if "O_CREAT" in args and path not in sizes:
            sizes[path] = 0
            yield Event("create", path)
        if "O_TRUNC" in args and sizes.get(path):
            sizes[path] = 0
            yield Event("truncate", path)
    elif call == "lseek" and number:
        open_files.setdefault(number[0], ["", 0, False])[1] = int(match["result"])
    elif call in ("write", "writev", "pwrite64") and number and number[0] in open_files:
        file = open_files[number[0]]
        path, data = folders[0], b"".join(strings)[: int(match["result"])]
        begin = int(args.rpartition(",")[2]) if call == "pwrite64" else sizes.get(path, 0) if file[2] else file[1]
        if call != "pwrite64":
            file[1] = begin + len(data)
        sizes[path] = max(sizes.get(path, 0), begin + len(data))
        yield Event("write", path, data=data, place=begin)
    elif call == "ftruncate":
        sizes[folders[0]] = int(args.rpartition(",")[2])
        yield Event("truncate", folders[0], place=sizes[folders[0]])
    elif call in ("fsync", "fdatasync"):
        yield Event("sync", folders[0])
    elif call in ("mkdir", "mkdirat"):
        yield Event("mkdir", paths()[0])
    elif call in ("rename", "renameat", "renameat2"):
        old, new = paths() if call != "rename" else [name.decode() for name in strings]
        for path in [path for path in sizes if path == old or path.startswith(f"{old}/")]:
            sizes[new + path.removeprefix(old)] = sizes.pop(path)
        yield Event("rename", old, new)
    elif call in ("unlink", "unlinkat", "rmdir"):
        sizes.pop(paths()[0], None)
        yield Event("remove", paths()[0])
    elif call not in ("write", "writev"):  # of pipes and sockets
        yield Event(call, (folders or paths() or [""])[0])


# ------------------------------------------------------------------------------ the disk


@dataclass
class Node:
    """A file or a folder: as processes see it, as the disk has it for sure, and the changes between the two."""

    folder: bool
    seen: Any  # bytes, or {name: Node}
    synced: Any
    changes: list[tuple[Any, ...]] = field(default_factory=list)

    def change(self, *change: Any) -> None:
        self.seen = changed(self.seen, change)
        self.changes.append(change)

    def sync(self) -> None:
        self.synced, self.changes = self.seen, []

    def after_a_cut(self, way: str, draw: random.Random) -> Any:
        """What the disk may have of it."""
        if way == WAYS[1] and self.folder:
            return self.seen
        if way != WAYS[2]:
            return self.synced
        content = self.synced
        for change in self.changes:
            if draw.random() < 0.5:
                content = changed(content, change)
        return content


def changed(content: Any, change: tuple[Any, ...]) -> Any:
    """A content after a change: ("write", place, data) or ("cut", length) of bytes, ("names", gone, {new: node})."""
    if change[0] == "write":
        _, place, data = change
        return content[:place].ljust(place, b"\0") + data + content[place + len(data) :]
    if change[0] == "cut":
        return content[: change[1]].ljust(change[1], b"\0")
    return {name: node for name, node in content.items() if name != change[1]} | change[2]


class Disk:
    """The folder `root` as events make it, from an empty one."""

    def __init__(self, root: str):
        self.root, self.top = root, Node(True, {}, {})

    def node(self, path: str) -> Node:
        node = self.top
        for name in Path(path).relative_to(self.root).parts:
            node = node.seen[name]
        return node

    def apply(self, event: Event) -> None:
        folder, name = os.path.split(event.path)
        if event.call == "create":
            self.node(folder).change("names", name, {name: Node(False, b"", b"")})
        elif event.call == "mkdir":
            self.node(folder).change("names", name, {name: Node(True, {}, {})})
        elif event.call == "remove":
            self.node(folder).change("names", name, {})
        elif event.call == "rename":
            into, new = os.path.split(event.target)
            if into != folder:
                raise NotImplementedError(f"{event.path} is moved to another folder, {event.target}")
            self.node(folder).change("names", name, {new: self.node(event.path)})
        elif event.call == "write":
            self.node(event.path).change("write", event.place, event.data)
        elif event.call == "truncate":
            self.node(event.path).change("cut", event.place)
        elif event.call == "sync":
            self.node(event.path).sync()
        else:
            raise NotImplementedError(f"{event.call} of {event.path}")

    def make(self, place: Path, way: str, draw: random.Random) -> None:
        """Make a folder that holds what the disk has after a cut."""
        _make(self.top, place, way, draw)


def _make(node: Node, path: Path, way: str, draw: random.Random) -> None:
    content = node.after_a_cut(way, draw)
    if not node.folder:
        path.write_bytes(content)
        return
    path.mkdir()
    for name, each in content.items():
        _make(each, path / name, way, draw)


def files(node: Node, path: str = "") -> Iterator[tuple[str, bytes]]:
    """(path, content) of all files in a folder, as processes see them."""
    if not node.folder:
        yield path, node.seen
        return
    for name, each in node.seen.items():
        yield from files(each, f"{path}/{name}".lstrip("/"))


# ------------------------------------------------------------------------------ the cuts


@dataclass(frozen=True)
class Cut:
    """A folder as a cut leaves it."""

    place: Path
    way: str
    returned: int  # the newest save that had returned, or -1
    begun: int  # the newest that had begun, or -1


def cuts(trace: Sequence[Event], root: Path, folder: Path, count: int, draw: random.Random) -> list[Cut]:
    """Make the folders of `count` cuts, at moments drawn among the events."""
    disk, found, returned, begun, names = Disk(str(root)), list[Cut](), -1, -1, dict[str, int]()
    moments = Counter(draw.randrange(1, len(trace) + 1) for _ in range(count))
    for number, event in enumerate(trace, 1):
        disk.apply(event)
        if event.call == "mkdir" and (step := re.fullmatch(r".*/checkpoints/(\d+)\.orbax-\S+-tmp", event.path)):
            begun = int(step[1])
        elif event.call == "rename" and (step := re.fullmatch(r".*/digests/(\d+)\.json", event.target)):
            names[os.path.dirname(event.target)] = int(step[1])
        elif event.call == "sync":
            returned = max(returned, names.pop(event.path, -1))
        for _ in range(moments[number]):
            place, way = folder / f"cut-{len(found)}", WAYS[len(found) % len(WAYS)]
            disk.make(place, way, draw)
            found.append(Cut(place, way, returned, begun))
    real = {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}
    if dict(files(disk.top)) != real:
        names = {name for name, data in files(disk.top) if real.get(name) != data} | real.keys() - dict(files(disk.top))
        raise SystemExit(f"the trace does not explain what the run has written: {', '.join(sorted(names))}")
    return found


def read(cut: Cut) -> str:
    """How the readers of a resume take a folder: "newest", "one being written", "begins anew", or what is wrong."""
    from vit_jax.errors import UserError
    from vit_jax.runs import choice
    from vit_jax.weights.checkpoint import Checkpoints

    run = Run(cut.place / "runs" / "run")
    try:
        if not run.exists():
            choice._fits(run, None)  # type: ignore[arg-type]
            return "begins anew" if cut.returned < 0 else f"wrong: no run, but save {cut.returned} had returned"
        record = run.record()
        saved, _ = Checkpoints(run).restore(run.config().model.shapes())
        step = saved.step if saved is not None else -1
        if remarks := [each for each in (run.remark(), run.log_remark(step)) if each]:
            return f"wrong: {'; '.join(remarks)}"
        assert record
    except UserError as error:
        return f"wrong: {error}"
    if step < cut.returned or step > cut.begun:
        return f"wrong: step {step} was found, of {cut.returned} that had returned and {cut.begun} begun"
    return "begins anew" if step < 0 else "newest" if step == cut.returned else "one being written"


def read_all(found: Sequence[Cut], out: Path) -> list[str]:
    """`read` of all cuts, in a forked process: jax starts there and not here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        child = os.fork()
    if child == 0:
        try:
            out.write_text(json.dumps([read(cut) for cut in found]))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return list(json.loads(out.read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuts", type=int, default=300, help="of each traced run")
    parser.add_argument("--lives", type=int, default=12, help="how many of these go on to their end")
    parser.add_argument("--seed", type=int, default=0)
    o = parser.parse_args()
    if not shutil.which("strace"):
        raise SystemExit("strace is not installed: install it, this traces a run with it")
    failed = 0
    with workplace() as folder:
        for name in IMPORTED:
            importlib.import_module(name)
        print(heading(describe()), flush=True)
        watch, draw = Watch(), random.Random(o.seed)
        for number, name in enumerate(TRACED):
            words, place = [*COMMAND, *VARIANTS[name]], folder / f"traced-{number}"
            expected = whole(folder / f"whole-{number}", words, watch, pictures=True)
            trace = traced(place, words)
            counts = Counter(event.call for event in trace)
            print(f"saved {name}: {len(trace)} calls ({', '.join(f'{n} {c}' for c, n in counts.most_common())})")
            (folder / f"cuts-{number}").mkdir()
            found = cuts(trace, place, folder / f"cuts-{number}", o.cuts, draw)
            results = read_all(found, folder / f"results-{number}.json")
            for way in WAYS:
                counts = Counter(result for cut, result in zip(found, results, strict=True) if cut.way == way)
                print(f"  {way}: {', '.join(f'{n} {what}' for what, n in counts.most_common())}", flush=True)
            failed += sum(result.startswith("wrong") for result in results)
            for cut in draw.sample(found, min(o.lives, len(found))):
                life = live(cut.place, words, watch, pictures=True)
                life.left.pop("saves", None)
                differs = [f"exit code {life.code}"] if life.code else [*differences(life.left, expected.left)]
                failed += bool(differs)
                print(
                    f"  {cut.place.name}, {cut.way}, goes on from a disk with save {cut.returned}: "
                    + (f"differs: {'; '.join(differs)}" if differs else "equal"),
                    flush=True,
                )
        if failed:
            raise SystemExit(f"{failed} cuts left something else; the folders are in {folder}")


if __name__ == "__main__":
    main()
