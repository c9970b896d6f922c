"""The training step of vit_jax compared with the same network in flax's layers and in PyTorch.

    python -m benchmarks.step [--nets 48x4,256x6,s16] [--sides flax,torch,compile] [--processes 3] [--rounds 8]
    python -m benchmarks.step --against OTHER-CHECKOUT

ours     vit_jax: the compiled step as in training, with the metrics that it logs
flax     benchmarks/plain.py, which returns the loss alone
torch    the model of torch_ref, eager, which returns the loss alone
compile  the same under torch.compile

All in float32. Within a process, a round is a block of steps of each side, in alternating order. A ratio is the median
time of a side in a round over that of ours, so above 1 ours is faster. One process differs from the next (memory falls
otherwise), so there are several. With --against each of them has a partner, started right after or before it, with the
vit_jax of the other checkout and the benchmarks of this one. Then there is a process on one core, for the CPU time of a
step without threads that wait for each other.

cores    CPU time over wall time: how many cores a step keeps busy
MFU      FLOPs of the step (three times the forward pass, two per multiply-add, from the config) over those of the
         fastest product of large float32 matrices that jax or torch does here in the same time
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout's own code, however this is started

from benchmarks.machine import describe, heading, interleave, load, spread
from benchmarks.sides import NETS, SIDES, build, config, matmul_peak
from vit_jax import backend
from vit_jax.config import flops

HERE = Path(__file__).parents[1]
# The ratios to reach on an AMD CPU with AVX-512. Others multiply otherwise: PyTorch's library is faster on Intel's.
GOALS = {
    "flax": {"48x4": 1.4, "256x6": 1.15, "s16": 1.05},
    "torch": {"48x4": 1.2, "256x6": 1.4, "s16": 1.5},
    "compile": {"48x4": 1.2, "256x6": 1.4, "s16": 1.5},
}


# ------------------------------------------------------------------------------ one process


def measured(net: str, sides: list[str], rounds: int, seconds: float, activation: str, nnx_jit: bool) -> dict[str, Any]:
    """What one process finds out about a net: {"sides": {side: its cost and each round's median}, "peak": ...}."""
    run = config(net)
    if activation:
        run = replace(run, model=replace(run.model, activation=activation))
    costs = interleave(build(run, sides, nnx_jit), rounds, seconds)
    return {
        "batch": run.batch,
        "flops": 3 * flops(run.model) * run.batch,
        "load": load(),
        "peak": matmul_peak(256 if net == "tiny" else 2048, {"torch", "compile"} & {*sides} != set()),
        "sides": {
            side: {**sum(rows[1:], rows[0]).summary(), "rounds_ms": [1e3 * row.median for row in rows]}
            for side, rows in costs.items()
        },
    }


# ------------------------------------------------------------------------------ several processes


def processes(checkouts: list[Path], net: str, o: argparse.Namespace) -> dict[Path, dict[str, list[dict[str, Any]]]]:
    """{checkout: {"all cores" or "one core": what each process found}}; partners run one right after the other."""
    found: dict[Path, dict[str, list[dict[str, Any]]]] = {each: {"all cores": [], "one core": []} for each in checkouts}
    for i in range(o.processes):
        for checkout in checkouts[:: 1 if i % 2 else -1]:
            found[checkout]["all cores"].append(process(checkout, net, o, o.rounds))
    for checkout in checkouts if o.one_core else ():
        found[checkout]["one core"].append(process(checkout, net, o, min(o.rounds, 2), one_core=True))
    return found


def process(checkout: Path, net: str, o: argparse.Namespace, rounds: int, one_core: bool = False) -> dict[str, Any]:
    """What a process with the vit_jax of a checkout and a copy of these benchmarks finds out about a net."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(HERE / "benchmarks", f"{folder}/benchmarks", ignore=shutil.ignore_patterns("results", "__pyc*"))
        worker = {"net": net, "sides": o.sides, "rounds": rounds, "seconds": o.seconds, "activation": o.activation}
        worker |= {"nnx_jit": o.nnx_jit, "one_core": one_core, "out": f"{folder}/found.json"}
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        if one_core:
            environment |= {"OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "benchmarks.step", "--worker", json.dumps(worker)]
        ended = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
        if ended.returncode:
            raise SystemExit(f"{checkout}: the process that measures {net} ended with {ended.returncode}; see above")
        return dict(json.loads(Path(worker["out"]).read_text()))


def work(words: dict[str, Any]) -> None:
    """What a process does that `process` started."""
    if words.pop("one_core"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before jax and torch count the cores
    out = words.pop("out")
    backend.configure_jax()
    Path(out).write_text(json.dumps(measured(**words)))


# ------------------------------------------------------------------------------ the tables


def summary(found: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """{side: its figures}: medians over the processes, and the fastest step of all."""
    peak = max(max(each["peak"].values()) for each in found["all cores"])
    table = {}
    for side in found["all cores"][0]["sides"]:
        rows = [each["sides"][side] for each in found["all cores"]]
        row = {name: statistics.median(r[name] for r in rows) for name in ("median_ms", "cpu_ms", "wall_ms", "faults")}
        row |= {"min_ms": min(r["min_ms"] for r in rows), "cores": row["cpu_ms"] / row["wall_ms"]}
        row["mfu"] = found["all cores"][0]["flops"] / (row["median_ms"] / 1e3) / peak
        if found["one core"]:
            row["one_core_cpu_ms"] = found["one core"][0]["sides"][side]["cpu_ms"]
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


def pairs(ours: list[dict[str, Any]], others: list[dict[str, Any]]) -> dict[str, Any]:
    """How many times as fast as the other checkout this one is: in each pair of processes, and by CPU time."""
    of = {
        name: [b["sides"]["ours"][name] / a["sides"]["ours"][name] for a, b in zip(ours, others, strict=True)]
        for name in ("median_ms", "cpu_ms")
    }
    return {"ratio": statistics.median(of["median_ms"]), "processes": of["median_ms"], "of_cpu": of["cpu_ms"]}


def show(net: str, table: dict[str, dict[str, float]]) -> None:
    """Print a line for each side."""
    for side, r in table.items():
        alone = f"{r['one_core_cpu_ms']:8.1f}" if "one_core_cpu_ms" in r else "       -"
        print(
            f"{net:6} {side:7} median {r['median_ms']:7.1f} ms  fastest {r['min_ms']:7.1f}  CPU {r['cpu_ms']:7.1f}  "
            f"CPU on one core {alone}  cores {r['cores']:4.2f}  page faults {r['faults']:7.0f}  MFU {r['mfu']:4.0%}"
        )


def listed(values: list[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def compare(net: str, checkouts: list[Path], o: argparse.Namespace, goals: bool) -> dict[str, Any]:
    """Measure one net, print the results and return them."""
    found = processes(checkouts, net, o)
    mine = found[checkouts[0]]["all cores"]
    row: dict[str, Any] = {"net": net, "batch": mine[0]["batch"], "load": [each["load"] for each in mine]}
    row["peak"] = {k: max(each["peak"][k] for each in mine) for k in mine[0]["peak"]}
    row |= {"table": summary(found[checkouts[0]]), "ratios": {side: ratios(mine, side) for side in o.sides}}
    show(net, row["table"])
    for side, r in row["ratios"].items():
        goal = GOALS[side].get(net) if goals else None
        print(
            f"{net:6} speed of ours / {side}: {r['ratio']:.2f} [{r['low']:.2f}..{r['high']:.2f}] over all rounds; "
            f"processes {listed(r['processes'])}" + (f"; goal {goal}" if goal else "")
        )
    if len(checkouts) > 1:
        other = found[checkouts[1]]
        row["other"] = {"table": summary(other), "ratios": {side: ratios(other["all cores"], side) for side in o.sides}}
        row["against"] = r = pairs(mine, other["all cores"])
        print(f"{net:6} {revision(checkouts[1])}:")
        show(net, row["other"]["table"])
        alone = [each["table"]["ours"].get("one_core_cpu_ms", 0.0) for each in (row, row["other"])]
        print(
            f"{net:6} speed of this checkout / the other: {r['ratio']:.2f}; processes {listed(r['processes'])}; "
            f"by CPU time {listed(r['of_cpu'])}" + (f"; on one core {alone[1] / alone[0]:.2f}" if all(alone) else "")
        )
    peak = ", ".join(f"{name} {value / 1e9:.0f}" for name, value in row["peak"].items())
    print(f"{net:6} float32 products, GFLOP/s: {peak}; load {'; '.join(row['load'])}", flush=True)
    return row


def revision(checkout: Path) -> str:
    """A checkout's folder and, where git knows it, its commit; a + where files differ from it."""
    git = ["git", "-C", str(checkout), "describe", "--always", "--dirty=+"]
    try:
        said = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    except OSError:
        said = ""
    return f"{checkout} ({said})" if said else str(checkout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", default="48x4,256x6,s16", help=f"which of {', '.join(NETS)} (tiny: to try this)")
    parser.add_argument("--sides", default="", help="which of flax, torch, compile; empty: all that are installed")
    parser.add_argument("--against", type=Path, metavar="PATH", help="another checkout of vit-jax to compare with")
    parser.add_argument("--processes", type=int, default=3, help="processes for each net (and checkout)")
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
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.worker:
        return work(o.worker)
    nets = o.nets.split(",")
    o.sides = o.sides.split(",") if o.sides else list(SIDES if importlib.util.find_spec("torch") else SIDES[:1])
    for name, words, known in (("--nets", nets, NETS), ("--sides", o.sides, SIDES)):
        if unknown := set(words) - set(known):
            parser.error(f"{name}: there is no {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if o.against and not (o.against / "vit_jax").is_dir():
        parser.error(f"--against {o.against}: is no checkout of vit-jax; give the folder that holds vit_jax/")
    if min(o.processes, o.rounds) < 1:
        parser.error(f"--processes {o.processes} --rounds {o.rounds}: give at least 1 of each")
    checkouts = [HERE.resolve(), *([o.against.resolve()] if o.against else [])]
    machine = describe()
    print(heading(machine), flush=True)
    print(f"{revision(checkouts[0])}; {o.processes} processes of {o.rounds} rounds for each net", flush=True)
    goals = "AMD" in machine["cpu"] and machine["features"].startswith("avx512")
    rows = [compare(net, checkouts, o, goals) for net in nets]
    if o.json:
        Path(o.json).write_text(
            json.dumps({"machine": machine, "command": " ".join(sys.argv), "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
