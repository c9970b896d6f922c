"""What benchmarks/gpu.sh runs, each figure in processes of its own, and the Markdown table of what they found.

It starts with the plan: our steps are compiled, and beside each figure stands what `vit-jax plan` says is its bound.

Each recipe is trained twice: two steps and an evaluation first, which compile for the cache of compiled programs, then
in full. The minutes are those of the second run, from its first step's compilation (read from the cache) to the last
evaluation: loop, evaluations and checkpoints included. A run that is interrupted goes on when the script is repeated.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout's own code, however this is started

from benchmarks.choices import CHOICES, described

HERE = Path(__file__).parents[1]


@dataclass(frozen=True)
class Recipe:
    """A training on CIFAR whose accuracy and time are a row of the table."""

    name: str
    goal: str
    train: str  # arguments of vit_jax.train


# No GPU was at hand to choose settings on: they follow what is published for networks and epochs like these.
HALF = "--compute-dtype bfloat16"
PLAIN = "--model.dropout 0 --model.attention-dropout 0 --model.activation-dropout 0"
MIXED = "--augment.policy randaugment --augment.mixup 0.8 --augment.cutmix 1"
FAST = "cifar10-stem --model.patch 4 --model.stem 64 128 --model.width 256 --model.hidden 512 --model.heads 8 "
FAST += f"--model.depth 6 {HALF} --batch 512 --ema 0.999 --data.validation 0"
VARIANTS = (
    Recipe("cifar10-90", ">= 90 %, in 60 s", f"{FAST} --epochs 50 --augment.policy autoaugment"),
    Recipe("cifar10-95", ">= 95 %, in 5 min", f"{FAST} --epochs 200 {MIXED} --model.drop-path 0.1"),
    Recipe("cifar10-48x4", "84 % (notebook: 75.5)", f"cifar10-48x4 {HALF} --epochs 300 --augment.policy autoaugment"),
    Recipe(
        "cifar10-256x6",
        "92 % (notebook: 78.8, validation)",
        f"cifar10-256x6 {PLAIN} {HALF} --model.drop-path 0.1 --epochs 200 {MIXED}",
    ),
    Recipe(
        "cifar100-256x24",
        "72 % (notebook: 49.8, validation)",
        f"cifar100-256x24 {PLAIN} {HALF} --model.drop-path 0.2 --epochs 300 {MIXED} --augment.erase 0.25",
    ),
    Recipe(
        "cifar100-768x3",
        "60 % (notebook: 41.9, validation)",
        f"cifar100-768x3 {PLAIN} {HALF} --model.drop-path 0.1 --epochs 200 {MIXED}",
    ),
)
NETS = {"vit-b16": "128,256", "vit-s16": "256,512"}  # {network: batches} of benchmarks.throughput
PLANNED = {"ours": "", "ours-plain": "--attention-kernel plain"}  # sides that vit-jax plan compiles: {side: flags}
SPEEDS = ("ours", "ours-plain", "flax", "timm-eager", "timm")  # sides of it
BATCH = 128  # of ViT-B/16 with each of CHOICES
# As benchmarks.throughput trains: without augmentation, clipping and schedule.
AS_MEASURED = "--augment.crop-padding 0 --augment.no-flip --optim.clip 0 --optim.schedule constant"
TOY_SIZES = "--net vit-ti16 --image 32 --depth 1 --batches 4 --steps 2 --rounds 2 --product 256"


@dataclass(frozen=True)
class Settings:
    """What the environment variables of gpu.sh say."""

    python: str
    torch_python: str
    data: str
    out: Path
    seeds: int
    only: tuple[str, ...]  # empty: all
    toy: bool

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Settings:
        """Settings of environment variables. Raises SystemExit on one that has no meaning."""
        toy, python = environment.get("TOY", "") not in ("", "0"), environment.get("PYTHON") or sys.executable
        only = tuple(filter(None, environment.get("ONLY", "").split(",")))
        names = [recipe.name for recipe in VARIANTS] + [f"{net}-{side}" for net in NETS for side in SPEEDS]
        names += [f"vit-b16-{choice}" for choice in CHOICES]
        if unknown := set(only) - set(names):
            raise SystemExit(f"ONLY={','.join(only)}: there is no {', '.join(unknown)}; there are {', '.join(names)}")
        if not (seeds := environment.get("SEEDS") or "1").isdecimal() or seeds == "0":
            raise SystemExit(f"SEEDS={seeds}: give a positive number")
        out = environment.get("OUT") or (tempfile.mkdtemp(prefix="vit-jax-toy-") if toy else "runs/gpu")
        torch_python = environment.get("TORCH_PYTHON") or python
        return cls(python, torch_python, environment.get("DATA", ""), Path(out), int(seeds), only, toy)


def training(recipe: Recipe, s: Settings, warm: bool) -> list[str]:
    """The arguments of vit_jax.train for a recipe; `warm`: of the two steps that compile."""
    words = [*recipe.train.split(), "--dir", str(s.out)]
    words += ["--data.dir", s.data] if s.data and not s.toy else []
    if s.toy:
        words += ["--data.source", str(s.out / f"toy-{classes(recipe)}.npz"), "--batch", "8", "--model.depth", "1"]
    if warm:
        return [*words, "--max-steps", "2", "--name", f"{recipe.name}-warm"]
    words += ["--epochs", "1", "--optim.warmup", "0"] if s.toy else []
    return [*words, "--seeds", str(s.seeds), "--name", recipe.name]


def classes(recipe: Recipe) -> int:
    return 100 if recipe.train.startswith("cifar100") else 10


def write_toys(folder: Path) -> None:
    """Noise of CIFAR's shape in place of CIFAR-10 and CIFAR-100, for TOY=1."""
    import numpy as np

    draw = np.random.default_rng(0)
    for k in (10, 100):
        made = {}
        for split, n in (("train", 80 if k == 10 else 200), ("test", k)):
            made[f"{split}_images"] = draw.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)
            made[f"{split}_labels"] = np.arange(n) % k
        np.savez(folder / f"toy-{k}.npz", **made)


def call(command: list[str], log: Path, output: Path | None = None) -> str:
    """Run a command with what it prints in a log, or its output in another file; returns '' or what is wrong."""
    print(f"{time.strftime('%H:%M:%S')} {' '.join(command[1:])}", flush=True)
    with open(log, "w", encoding="utf-8") as file, open(output or os.devnull, "w", encoding="utf-8") as apart:
        ended = subprocess.run(command, cwd=HERE, stdout=apart if output else file, stderr=file)
    return f"failed with {ended.returncode}, see {log}" if ended.returncode else ""


def trained(recipe: Recipe, s: Settings) -> dict[str, str]:
    """Train a recipe; its row of the table."""
    words = training(recipe, s, warm=False)
    shown = "python -m vit_jax.train " + " ".join(words)
    row = {"what": recipe.name, "goal": recipe.goal, "measured": "", "minutes": "", "command": shown}
    folder = s.out / recipe.name
    if not (folder / "summary.json").exists():
        for warm in (True, False):
            command = [s.python, "-m", "vit_jax.train", *training(recipe, s, warm)]
            log = s.out / f"{recipe.name}{'-warm' if warm else ''}.log"
            if wrong := call(command, log):
                return {**row, "measured": wrong}
    compiling = json.loads((s.out / f"{recipe.name}-warm/summary.json").read_text())["seconds"]
    found = result(folder)
    return {**row, **found, "minutes": f"{found['minutes']}; the two steps that compile {compiling / 60:.1f}"}


def result(folder: Path) -> dict[str, str]:
    """The cells of a group of seeds: test accuracy after the last step, minutes, images per second."""
    metrics = json.loads((folder / "summary.json").read_text())["metrics"]
    name = next(each for each in ("test.last_ema.accuracy", "test.last.accuracy") if each in metrics)
    values = metrics[name]
    spread = f" +-{100 * values['std']:.2f}" if len(values["values"]) > 1 else ""
    speeds = [json.loads(line).get("images_per_second") for line in next(folder.glob("seed-*/metrics.jsonl")).open()]
    speed = max(filter(None, speeds), default=0.0)
    return {
        "measured": f"{100 * values['mean']:.2f} %{spread} ({name}); {speed:,.0f} images/s",
        "minutes": f"{metrics['seconds']['mean'] / 60:.1f}",
    }


def planned(name: str, s: Settings) -> str:
    """What the plan of one of our sides, such as vit-b16-ours, bounds on this machine's devices; or what is wrong."""
    net, side = split_name(name)
    flags = f"--model.depth 1 --batch 8 --model.image 32 {PLANNED[side]}" if s.toy else PLANNED[side]
    batch = "" if s.toy else f"--batch {NETS[net].rpartition(',')[2]}"
    words = f"vit_jax plan {net} --model.classes 1000 --compute-dtype bfloat16 {AS_MEASURED} {batch} {flags}"
    file = s.out / f"plan-{name}.json"
    if wrong := call([s.python, "-m", *words.split(), "--json"], s.out / f"plan-{name}.log", file):
        return wrong
    step = json.loads(file.read_text())["steps"][0]
    if "rows_per_second" not in step:
        return "unknown: no published figures"
    mfu = f", MFU {step['mfu']:.1%}" if "mfu" in step else ""
    return f"at most {step['rows_per_second']:,.0f} images/s{mfu}, by {step['bounds']['binds']}"


def split_name(name: str) -> tuple[str, str]:
    """(network, side) of a row such as vit-b16-ours."""
    net = next(net for net in NETS if name.startswith(net))
    return net, name.removeprefix(f"{net}-")


def speed(name: str, s: Settings) -> dict[str, str]:
    """Measure a network on one side, such as vit-b16-ours; its row of the table."""
    net, side = split_name(name)
    file = s.out / f"throughput-{name}.json"
    sizes = TOY_SIZES if s.toy else f"--net {net} --batches {NETS[net]}"
    words = ["-m", "benchmarks.throughput", side, *sizes.split(), "--json", str(file)]
    goal = "MFU 50 %" if side.startswith("ours") else "(for comparison)"
    row = {
        "what": name,
        "goal": goal,
        "measured": "",
        "minutes": "",
        "command": "python " + " ".join(words),
    }
    began = time.monotonic()
    python = s.torch_python if side.startswith("timm") else s.python
    if wrong := call([python, *words], s.out / f"throughput-{name}.log"):
        return {**row, "measured": wrong}
    found = json.loads(file.read_text())
    best, how = found["best"], "stated" if found["stated"] else "measured"
    measured = (
        f"{best['images_per_second']:,.1f} images/s at batch {best['batch']}, MFU {best['mfu']:.1%} of the {how} "
    )
    measured += f"{found['peak'] / 1e12:,.3g} TFLOP/s of {found['device']}"
    return {**row, "measured": measured, "minutes": f"{(time.monotonic() - began) / 60:.1f}"}


def chosen(choice: str, s: Settings) -> dict[str, str]:
    """Measure ViT-B/16 with a choice of benchmarks.choices; its row of the table."""
    file = s.out / f"choice-{choice}.json"
    net, batch = ("tiny", 4) if s.toy else ("b16", BATCH)
    words = ["-m", "benchmarks.choices", "--nets", net, "--batch", str(batch), "--dtype", "bfloat16"]
    words += ["--choices", choice, *(["--product", "256", "--steps", "2"] if s.toy else ["--steps", "20"])]
    words += ["--json", str(file)]
    row = {
        "what": f"vit-b16-{choice}",
        "goal": "",
        "measured": "",
        "minutes": "",
        "command": "python " + " ".join(words),
    }
    began = time.monotonic()
    if wrong := call([s.python, *words], s.out / f"choice-{choice}.log"):
        return {**row, "measured": wrong}
    (found,) = json.loads(file.read_text())["rows"]
    return {**row, "measured": " ".join(described(found).split()), "minutes": f"{(time.monotonic() - began) / 60:.1f}"}


def about(s: Settings) -> str:
    """The devices and versions of both interpreters."""
    ask = (
        "import jax; print('jax', jax.__version__, 'on', jax.device_count(), 'x', jax.devices()[0].device_kind)",
        "import torch, importlib.metadata as m; "
        "print('torch', torch.__version__, 'CUDA', torch.version.cuda, 'timm', m.version('timm'))",
    )
    lines = []
    for python, code in zip((s.python, s.torch_python), ask, strict=True):
        ended = subprocess.run([python, "-c", code], capture_output=True, text=True)
        lines.append((ended.stdout if not ended.returncode else ended.stderr).strip().splitlines()[-1:] or ["?"])
    return "; ".join(each[0] for each in lines)


def table(rows: list[dict[str, str]], title: str) -> str:
    """The rows as Markdown."""
    columns = ("what", "goal", "bound", "measured", "minutes", "command")
    lines = [f"# {title}", "", "| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    for row in rows:
        cells = {**row, "command": f"`{row['command']}`" if row["command"] else ""}
        lines.append("| " + " | ".join(cells.get(name, "").replace("|", "\\|") for name in columns) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    s = Settings.read(os.environ)
    s.out.mkdir(parents=True, exist_ok=True)
    if s.toy:
        write_toys(s.out)
    date, began = time.strftime("%Y-%m-%d"), time.monotonic()
    title = f"GPU figures{' in tiny, on a CPU: not figures' if s.toy else ''}, {date}; {about(s)}"
    page = (s.out if s.toy else HERE / "benchmarks/results") / f"{date}-gpu.md"
    rows: list[dict[str, str]] = []
    works = [(f"{net}-{side}", speed, f"{net}-{side}") for net in NETS for side in SPEEDS]
    works += [(f"vit-b16-{choice}", chosen, choice) for choice in CHOICES] + [(r.name, trained, r) for r in VARIANTS]
    works = [each for each in works if not s.only or each[0] in s.only]
    bounds = {name: planned(name, s) for name, work, _ in works if work is speed and split_name(name)[1] in PLANNED}
    for name, bound in bounds.items():
        print(f"{name}: {bound}", flush=True)
    for name, work, argument in works:
        rows.append(work(argument, s) | {"bound": bounds.get(name, "")})  # type: ignore[arg-type]
        page.write_text(table(rows, title))  # after each row: hours may follow
    print(f"\n{page.read_text()}\n{page}, after {(time.monotonic() - began) / 60:.1f} minutes; logs are in {s.out}")
    return 1 if any("failed with" in row["measured"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
