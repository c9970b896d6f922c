"""The process of one side of benchmarks.step: it does as many steps as it is told, with the code of its own checkout.

`benchmarks.step` runs the text of this file in the folder of the side's checkout, whose `benchmarks` and `vit_jax` it
then imports, so that a comparison works although their files have moved.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from importlib import import_module
from typing import Any


def main(words: dict[str, Any]) -> None:
    """Print the first loss and, of ours and torch, the peak of the library's products; then, for each number that is
    read, do so many steps and print their cost. All answers are lines of JSON.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is not an answer
    if words["one_core"]:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before jax and torch count the cores
    from benchmarks import sides
    from benchmarks.machine import measure

    net, side = words["net"], "ours" if words["side"] == "other" else words["side"]
    build = sides.build_net if hasattr(sides, "build_net") else build_before
    dtype = [] if words.get("dtype", "float32") == "float32" else [words["dtype"]]  # earlier checkouts know no other
    step = build(net, side, words["activation"], words["nnx_jit"], *dtype)
    first = float(step())
    library = {"ours": "jax", "torch": "torch"}.get(words["side"], "")
    peak = {library: sides.matmul_peak(256 if "tiny" in net else 2048, library)} if library else {}
    print(json.dumps({"loss": first, "peak": peak}), file=answers, flush=True)
    many = sides.together(side)
    for line in sys.stdin:
        step()  # not counted: the caches still hold the data of the one before
        cost = measure(step, max(int(line) // many, 1))
        seconds = [each / many for each in cost.seconds]
        print(json.dumps([seconds, cost.cpu / many, cost.faults / many]), file=answers, flush=True)


def build_before(net: str, side: str, activation: str, nnx_jit: bool) -> Any:
    """`sides.build_net` for checkouts of before it (commit e3c4a86 and older), which know none of the presets.

    Files are named as they lie there.
    """
    from dataclasses import replace

    from benchmarks import sides

    if net in sides.NETS:
        run = sides.config(net)
        run = replace(run, model=replace(run.model, activation=activation)) if activation else run
        return sides.build(run, side, nnx_jit)
    run = import_module("vit_jax.presets").preset(net).run
    import_module("vit_jax.backend").configure_jax(import_module("vit_jax.division").planned(run).devices)
    setup = import_module("vit_jax.train.setup").set_up(run)
    batches = import_module("vit_jax.data").batches
    with contextlib.closing(batches(setup.dataset.splits["train"], setup.order, 0, 1)) as stream:
        batch = next(stream)
    sides.engine_of = lambda run, batch: setup.engine  # type: ignore[assignment]
    return sides.vit_jax_step(setup.run, batch, sides.together(side))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
