"""What the choices of a run that change nothing but rounding cost: scan, remat and the attention kernel.

    python -m benchmarks.choices [--nets 256x24,s16] [--choices plain,scan,...] [--batch N] [--dtype bfloat16]

compile  seconds until the training step is compiled, tracing included, and the CPU time of them, without any cache
scratch  what XLA needs while a step runs, beside its arguments and results (memory_analysis), of one device
step     median time of a step that ends before the next begins, and its CPU time
peak     the most memory that the device held (memory_stats; a CPU does not tell)
MFU      as in benchmarks.throughput, for bfloat16 alone: work that remat does twice does not count

Each choice has a process of its own, one after the other, and all of them again in each round, of which the medians are
shown. Without dropout and augmentation, on images that are on the device. The choices have the same first loss.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout's own code, however this is started

from benchmarks.machine import describe, heading, load, measure
from benchmarks.sides import NETS, config, data, engine_of, weights
from benchmarks.throughput import peak
from vit_jax.machine.division import step_flops

CHOICES: dict[str, dict[str, Any]] = {
    "plain": {},
    "scan": {"scan": True},
    "remat": {"remat": "full"},
    "scan+remat": {"scan": True, "remat": "full"},
    "scan+dots": {"scan": True, "remat": "dots"},
    "fused": {"attention_kernel": "fused"},
    "fused+scan+remat": {"attention_kernel": "fused", "scan": True, "remat": "full"},
}
NEAR = {"float32": 1e-3, "bfloat16": 3e-2}  # how far first losses may lie apart


def work(words: dict[str, Any]) -> dict[str, Any]:
    """Compile a step with one choice and do some, in this process."""
    run = replace(config(words["net"]), **CHOICES[words["choice"]], compute_dtype=words["dtype"], accumulate=1)
    run = replace(run, batch=words["batch"] or run.batch)
    batch = data(run.model, run.batch)
    engine = engine_of(run, batch)  # before jax starts, which it configures
    import jax

    state, batch = engine.start(weights(run.model)), jax.device_put(batch, engine.devices.sharded)
    began, cpu = time.perf_counter(), time.process_time()
    compiled = engine.compiled.lower(state, batch, engine.seed, engine.frozen_arrays).compile()
    found = {"batch": run.batch, "compile": time.perf_counter() - began, "compile_cpu": time.process_time() - cpu}
    state, metrics = compiled(state, batch, engine.seed, engine.frozen_arrays)
    found |= {"loss": float(metrics["loss"]), "scratch": compiled.memory_analysis().temp_size_in_bytes / 1e6}

    def step() -> None:
        nonlocal state
        state, _ = jax.block_until_ready(compiled(state, batch, engine.seed, engine.frozen_arrays))

    step()
    cost = measure(step, words["steps"]).summary()
    found |= {"ms": cost["median_ms"], "cpu_ms": cost["cpu_ms"]}
    if stats := jax.local_devices()[0].memory_stats():
        found["peak"] = stats["peak_bytes_in_use"] / 1e6
    if words["dtype"] == "bfloat16":
        found["device"], limit, found["stated"] = peak("ours", words["product"])
        found["mfu"] = step_flops(run.model, run.batch) / (found["ms"] / 1e3) / limit
    return found


def process(words: dict[str, Any]) -> dict[str, Any]:
    """`work` in a process of its own; of one that fails, as for lack of memory, {"error": its last line}."""
    command = [sys.executable, "-m", "benchmarks.choices", "--worker", json.dumps(words)]
    environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    done = subprocess.run(command, cwd=Path(__file__).parents[1], env=environment, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("---")]
        return {"error": (lines or [f"ended with {done.returncode}"])[-1][:200]}
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def medians(found: list[dict[str, Any]]) -> dict[str, Any]:
    """One row of the rounds of a choice: medians of numbers; an error if any round has one."""
    if wrong := [each for each in found if "error" in each]:
        return wrong[0]
    numbers = {name for name, value in found[0].items() if isinstance(value, float)}
    return found[0] | {name: statistics.median(each[name] for each in found) for name in numbers}


def described(row: dict[str, Any]) -> str:
    """What is found about a choice, in a line."""
    if "error" in row:
        return str(row["error"])
    line = f"compile {row['compile']:6.1f} s (CPU {row['compile_cpu']:6.1f})  scratch {row['scratch']:9,.1f} MB  "
    line += f"step {row['ms']:8.1f} ms (CPU {row['cpu_ms']:8.1f})  {1e3 * row['batch'] / row['ms']:9,.1f} images/s"
    line += f"  peak {row['peak']:9,.1f} MB" if "peak" in row else ""
    how = "stated" if row.get("stated") else "measured"
    return line + (f"  MFU {row['mfu']:.1%} of the {how} peak of {row['device']}" if "mfu" in row else "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", default="256x24,s16", help=f"which of {', '.join(NETS)} (tiny: to try this)")
    parser.add_argument("--choices", default=",".join(CHOICES), help="which of them, with commas between")
    parser.add_argument("--batch", type=int, default=0, help="images a step; 0: as many as the net has here")
    parser.add_argument("--dtype", choices=list(NEAR), default="float32", help="compute_dtype of the run")
    parser.add_argument("--steps", type=int, default=5, help="steps that are measured in a process")
    parser.add_argument("--rounds", type=int, default=1, help="processes of each choice")
    parser.add_argument("--product", type=int, default=8192, help="size of the matrices of a measured peak")
    parser.add_argument("--json", default="", help="file to write all results to")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.worker:
        print(json.dumps(work(o.worker)))
        return 0
    nets, choices = o.nets.split(","), o.choices.split(",")
    for name, words, known in (("--nets", nets, NETS), ("--choices", choices, CHOICES)):
        if unknown := set(words) - set(known):
            parser.error(f"{name}: there is no {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if min(o.steps, o.rounds) < 1:
        parser.error(f"--steps {o.steps} --rounds {o.rounds}: give at least 1 of each")
    machine = describe()
    print(heading(machine), flush=True)
    rows = []
    for net in nets:
        words = {"net": net, "dtype": o.dtype, "batch": o.batch, "steps": o.steps, "product": o.product}
        rounds = [{choice: process({**words, "choice": choice}) for choice in choices} for _ in range(o.rounds)]
        table = {choice: medians([each[choice] for each in rounds]) for choice in choices}
        losses = {choice: row["loss"] for choice, row in table.items() if "loss" in row}
        if losses and max(losses.values()) - min(losses.values()) > NEAR[o.dtype]:
            raise SystemExit(f"the choices do not compute the same network, their first losses are {losses}")
        for choice, row in table.items():
            about = f"{net} {o.dtype} batch {row.get('batch', '-')}"
            print(f"{about}  {choice:16}  {described(row)}", flush=True)
            rows.append({"net": net, "choice": choice, **row})
    print(f"load {load()}")
    if o.json:
        Path(o.json).write_text(
            json.dumps({"machine": machine, "command": " ".join(sys.argv), "rows": rows}, indent=1) + "\n"
        )
    return 1 if any("error" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
