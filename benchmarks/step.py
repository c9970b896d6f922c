"""The training step of vit_jax compared with the same network in flax's layers and in PyTorch.

    python -m benchmarks.step [--nets 48x4,256x6,s16] [--sides flax,torch,compile] [--processes 3] [--rounds 8]
    python -m benchmarks.step --against OTHER-CHECKOUT
    python -m benchmarks.step --dtype bfloat16 --sides float32,torch,compile

ours     vit_jax: the compiled step as in training, with the metrics that it logs
other    the same with the vit_jax and the benchmarks of OTHER-CHECKOUT
flax     benchmarks/plain.py, which returns the loss alone
torch    the model of torch_ref, eager, which returns the loss alone; for t5-small transformers' own (t5_step.py)
compile  the same under torch.compile
x10      ours with ten steps by one call (--steps-per-dispatch 10), or another number; times are those of one step
float32  ours in float32

All others in the --dtype, PyTorch in bfloat16 by autocast. The nets digits and numbers are the presets as they are
trained, with ours and other alone. Each side has a process of its own, with the settings of its own for threads and
memory; it waits while another measures. A round is a block of steps of each side, in alternating order. A ratio is the
median time of a side in a round over that of ours, so above 1 ours is faster. One process differs from the next (memory
falls otherwise), so there are several of each side. Then there is one of each on one core, for the CPU time of a step
without threads that wait for each other.

cores    CPU time over wall time: how many cores a step keeps busy
MFU      FLOPs of the step (three times the forward pass, two per multiply-add, from the config) over those of the
         fastest product of large float32 matrices that jax or torch does here in the same time
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout's own code, however this is started

from benchmarks import t5_step
from benchmarks.machine import Cost, describe, heading, load, spread
from benchmarks.sides import NETS, PRESETS, SIDES, run_of, together
from vit_jax.machine.division import step_flops

HERE = Path(__file__).resolve().parents[1]
WORKER = HERE / "benchmarks" / "worker.py"
# The ratios to reach on an AMD CPU with AVX-512. Others multiply otherwise: PyTorch's library is faster on Intel's.
GOALS = {
    "flax": {"48x4": 1.4, "256x6": 1.15, "s16": 1.05},
    "torch": {"48x4": 1.2, "256x6": 1.4, "s16": 1.5, "t5-small": 1.0},
    "compile": {"48x4": 1.2, "256x6": 1.4, "s16": 1.5, "t5-small": 1.0},
}
NEAR = {"float32": 1e-4, "bfloat16": 3e-2}  # how far first losses may lie apart


# ------------------------------------------------------------------------------ one side


class Side:
    """The process of a side, with the vit_jax and the benchmarks of a checkout; it works on request."""

    def __init__(self, stack: ExitStack, checkout: Path, words: dict[str, Any]):
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        if words["one_core"]:
            environment |= {"OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", WORKER.read_text(encoding="utf-8"), json.dumps(words)]
        self.name, pipe = f"{words['side']} of {words['net']}", subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=checkout, env=environment, stdin=pipe, stdout=pipe, text=True)
        stack.callback(self.end)
        self.first = self.answer()  # so that one side compiles after the other

    def answer(self) -> Any:
        """The next answer. Exits where the process has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the process that measures {self.name} ended with {self.process.wait()}; see above")
        return json.loads(line)

    def steps(self, times: int) -> Cost:
        """The cost of some steps, done now."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the process has ended, which `answer` says
            print(times, file=self.process.stdin, flush=True)
        return Cost(*self.answer())

    def end(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()


# ------------------------------------------------------------------------------ all sides


def measured(net: str, o: argparse.Namespace, rounds: int, one_core: bool = False) -> dict[str, Any]:
    """What one process of each side finds out about a net: {"sides": {side: its cost and each round's median}, ...}."""
    words = {"net": net, "activation": o.activation, "nnx_jit": o.nnx_jit, "one_core": one_core, "dtype": o.dtype}
    others = sides_of(net, o.sides)
    with ExitStack() as stack:
        sides = {
            side: Side(stack, o.against if side == "other" else HERE, {**words, "side": side})
            for side in ("ours", *others)
        }
        first = {name: side.first["loss"] for name, side in sides.items()}
        if max(first.values()) - min(first.values()) > NEAR[o.dtype]:
            raise SystemExit(f"the sides do not compute the same network, their first losses are {first}")
        costs = interleaved(sides, rounds, o.seconds)
    run = run_of(net, o.activation, o.dtype)
    return {
        "batch": run.batch,
        "flops": step_flops(run.model, run.batch),
        "load": load(),
        "peak": {library: peak for side in sides.values() for library, peak in side.first["peak"].items()},
        "sides": {
            side: {**sum(rows[1:], rows[0]).summary(), "rounds_ms": [1e3 * row.median for row in rows]}
            for side, rows in costs.items()
        },
    }


def sides_of(net: str, sides: list[str]) -> list[str]:
    """Those of the sides that a net has: of a preset, those of vit_jax; of T5, all but flax."""
    if net in PRESETS:
        return [side for side in sides if side in ("other", "float32") or together(side) > 1]
    return [side for side in sides if side != "flax" or net not in t5_step.NETS]


def interleaved(sides: dict[str, Side], rounds: int, seconds: float) -> dict[str, list[Cost]]:
    """{side: cost in each round}: in every round each works for about `seconds`, in alternating order."""
    slowest = max(side.steps(1).median for side in sides.values())
    times = max(2, round(seconds / slowest))
    costs: dict[str, list[Cost]] = {name: [] for name in sides}
    for i in range(rounds):
        for name in list(sides)[:: 1 if i % 2 else -1]:
            costs[name].append(sides[name].steps(times))
    return costs


# ------------------------------------------------------------------------------ the tables


def summary(found: list[dict[str, Any]], alone: dict[str, Any] | None) -> dict[str, dict[str, float]]:
    """{side: its figures}: medians over the processes, and the fastest step of all; `alone` is found on one core."""
    peak = max(max(each["peak"].values()) for each in found)
    table = {}
    for side in found[0]["sides"]:
        rows = [each["sides"][side] for each in found]
        row = {name: statistics.median(r[name] for r in rows) for name in ("median_ms", "cpu_ms", "wall_ms", "faults")}
        row |= {"min_ms": min(r["min_ms"] for r in rows), "cores": row["cpu_ms"] / row["wall_ms"]}
        row["mfu"] = found[0]["flops"] / (row["median_ms"] / 1e3) / peak
        if alone:
            row["one_core_cpu_ms"] = alone["sides"][side]["cpu_ms"]
        table[side] = row
    return table


def ratios(ours: list[dict[str, Any]], side: str) -> dict[str, Any]:
    """How many times as fast as a side ours is: over all rounds, and in each process."""
    rounds = [
        [t / o for o, t in zip(each["sides"]["ours"]["rounds_ms"], each["sides"][side]["rounds_ms"], strict=True)]
        for each in ours
    ]
    every = spread([ratio for each in rounds for ratio in each])
    return {**every, "processes": [statistics.median(each) for each in rounds], "rounds": rounds}


def show(net: str, table: dict[str, dict[str, float]]) -> None:
    """Print a line for each side."""
    for side, r in table.items():
        alone = f"{r['one_core_cpu_ms']:8.1f}" if "one_core_cpu_ms" in r else "       -"
        print(
            f"{net:6} {side:7} median {r['median_ms']:7.1f} ms  fastest {r['min_ms']:7.1f}  CPU {r['cpu_ms']:7.1f}  "
            f"CPU on one core {alone}  cores {r['cores']:4.2f}  page faults {r['faults']:7.0f}"
            + (f"  MFU {r['mfu']:4.0%}" if r["mfu"] else "")
        )


def listed(values: list[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def compare(net: str, o: argparse.Namespace, goals: bool) -> dict[str, Any]:
    """Measure one net, print the results and return them."""
    found = [measured(net, o, o.rounds) for _ in range(o.processes)]
    alone = measured(net, o, min(o.rounds, 2), one_core=True) if o.one_core else None
    row: dict[str, Any] = {"net": net, "batch": found[0]["batch"], "load": [each["load"] for each in found]}
    row["peak"] = {k: max(each["peak"][k] for each in found) for k in found[0]["peak"]}
    row |= {"table": summary(found, alone), "ratios": {side: ratios(found, side) for side in sides_of(net, o.sides)}}
    show(net, row["table"])
    for side, r in row["ratios"].items():
        goal = GOALS.get(side, {}).get(net) if goals else None
        text = (
            f"{net:6} speed of ours / {side}: {r['ratio']:.2f} [{r['low']:.2f}..{r['high']:.2f}] over all rounds; "
            f"processes {listed(r['processes'])}" + (f"; goal {goal}" if goal else "")
        )
        if alone:
            ours, theirs = (row["table"][name]["one_core_cpu_ms"] for name in ("ours", side))
            text += f"; on one core {theirs / ours:.2f}"
        print(text)
    peak = ", ".join(f"{name} {value / 1e9:.0f}" for name, value in row["peak"].items())
    print(f"{net:6} float32 products, GFLOP/s: {peak}; load {'; '.join(row['load'])}", flush=True)
    return row


def revision(checkout: Path) -> str:
    """A checkout's folder and, where git knows it, its commit; a + where files differ from it."""
    git = ["git", "-C", str(checkout), "describe", "--always", "--dirty=+"]
    try:
        commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    except OSError:
        commit = ""
    return f"{checkout} ({commit})" if commit else str(checkout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", default="48x4,256x6,s16", help=f"which of {', '.join(NETS)} (tiny: to try this)")
    parser.add_argument(
        "--sides",
        default="",
        help="which of flax, torch, compile, xN, float32; empty: the installed of the first three, with --against none",
    )
    parser.add_argument("--dtype", choices=list(NEAR), default="float32", help="compute_dtype of the run")
    parser.add_argument("--against", type=Path, metavar="PATH", help="another checkout of vit-jax to compare with")
    parser.add_argument("--processes", type=int, default=3, help="processes of each side, for each net")
    parser.add_argument("--rounds", type=int, default=8, help="blocks of steps of each side in a process")
    parser.add_argument("--seconds", type=float, default=1.5, help="length of a block, at least two steps")
    parser.add_argument(
        "--one-core", action=argparse.BooleanOptionalAction, default=True, help="also a process on one core"
    )
    parser.add_argument(
        "--activation", default="", help="another mlp activation on all sides, such as gelu; empty: the presets' own"
    )
    parser.add_argument(
        "--nnx-jit", action="store_true", help="flax under nnx.jit with nnx.Optimizer instead of split/merge"
    )
    parser.add_argument("--json", default="", help="file to write all results to")
    o = parser.parse_args()
    nets = o.nets.split(",")
    installed = SIDES if importlib.util.find_spec("torch") else SIDES[:1]
    o.sides = o.sides.split(",") if o.sides else [] if o.against else list(installed)
    for name, words, known in (("--nets", nets, NETS), ("--sides", o.sides, (*SIDES, "float32"))):
        if unknown := {word for word in set(words) - set(known) if together(word) == 1}:
            parser.error(f"{name}: there is no {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if o.against and not all((o.against / name).is_dir() for name in ("vit_jax", "benchmarks")):
        parser.error(f"--against {o.against}: is no checkout of vit-jax; give one with vit_jax/ and benchmarks/")
    if min(o.processes, o.rounds) < 1:
        parser.error(f"--processes {o.processes} --rounds {o.rounds}: give at least 1 of each")
    if o.against:
        o.against, o.sides = o.against.resolve(), ["other", *o.sides]
    machine = describe()
    print(heading(machine), flush=True)
    others = f"; other: {revision(o.against)}" if o.against else ""
    print(f"{revision(HERE)}{others}; {o.processes} processes of {o.rounds} rounds for each net", flush=True)
    goals = "AMD" in machine["cpu"] and machine["features"].startswith("avx512") and o.dtype == "float32"
    rows = [compare(net, o, goals) for net in nets]
    if o.json:
        Path(o.json).write_text(
            json.dumps({"machine": machine, "command": " ".join(sys.argv), "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
