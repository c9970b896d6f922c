"""The time of dropout from 16 random bits per value, as in vit_jax, and from 32, as in jax.random.bernoulli.

    python -m benchmarks.dropout [--rounds 8] [--json OUT]

It measures training steps of cifar10-256x6 at batch 64, with dropout of 0.2 by both kinds of masks from the same keys,
and without dropout, alternating as in machine.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout's own code, however this is started

from benchmarks.machine import describe, heading, interleave, load, spread
from benchmarks.sides import data, deterministic, vit_jax_step
from vit_jax import backend
from vit_jax.presets.table import preset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8, help="blocks of steps of each kind")
    parser.add_argument("--json", default="", help="file to write all results to")
    o = parser.parse_args()
    backend.configure_jax()  # before jax is imported below
    machine = describe()
    print(heading(machine), flush=True)
    import jax

    from vit_jax import layers

    model = preset("cifar10-256x6").run.model
    without = deterministic(preset("cifar10-256x6").run, 64)
    rates = {name: getattr(model, name) for name in ("dropout", "attention_dropout", "activation_dropout")}
    run = replace(without, model=replace(without.model, **rates))
    batch = data(run.model, run.batch)

    def bernoulli(key: Any, shape: tuple[int, ...], rate: float) -> Any:
        return jax.random.bernoulli(key, 1 - rate, shape)

    works, own = {}, layers._keep
    for name, config, mask in (("16 bits", run, own), ("bernoulli", run, bernoulli), ("no dropout", without, own)):
        layers._keep = mask
        try:
            works[name] = vit_jax_step(config, batch)
            print(f"{name:10} first loss {float(works[name]()):.4f}", flush=True)  # traced and compiled here
        finally:
            layers._keep = own
    costs = interleave(works, o.rounds, 1.5)
    rows: dict[str, Any] = {}
    for name, all_ in costs.items():
        rows[name] = sum(all_[1:], all_[0]).summary()
        rows[name] |= spread([a.median / b.median for a, b in zip(all_, costs["16 bits"], strict=True)])
        rows[name]["cpu_ratio"] = rows[name]["cpu_ms"] / rows["16 bits"]["cpu_ms"]
        r = rows[name]
        print(
            f"{name:10} median {r['median_ms']:7.1f} ms  min {r['min_ms']:7.1f} ms  CPU {r['cpu_ms']:7.1f} ms  "
            f"page faults {r['faults']:6.0f}, per step; {r['ratio']:.2f} [{r['low']:.2f}..{r['high']:.2f}] times "
            f"the step with 16 bits, {r['cpu_ratio']:.2f} in CPU time"
        )
    print(f"rates {rates}, batch {run.batch}, {o.rounds} rounds, load {load()}")
    if o.json:
        Path(o.json).write_text(
            json.dumps({"machine": machine, "command": " ".join(sys.argv), "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
