"""Fine-tuning compared with training from scratch at equal steps: from MNIST at 28 px to the digits at 32 px.

    python -m benchmarks.finetune --data TFDS [--steps 50 300] [--seeds 3] [--out runs/benchmark] [--verify]

The preset mnist is trained once (about five minutes; TFDS is the folder of prepared sets) and then, with a new head and
its positions resized from a 7x7 to an 8x8 grid, fine-tuned on 1,293 of scikit-learn's digits, scaled from 8 to 32 px.
All runs have the network of mnist, batches of 128 (ten steps an epoch), and AdamW in one cycle over their steps; they
differ in their start, in what trains, and in the rate. That is chosen for each row among --rates by the validation of
the first seed, and every row reports the test split after the last step. A command that is repeated goes on with the
runs that are missing.

trained    parameters that train
images/s   of the training loop, the median over the rows of its log
ahead      by how much the mean accuracy exceeds that from scratch
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout's own code, however this is started

from benchmarks.machine import describe, heading

IMAGE, BATCH, PER_EPOCH = 32, 128, 10  # of the digits: pixels, images a step, steps an epoch
SCRATCH = "from scratch"
# {row: (recipe of --tune, rates to choose from)}
ROWS: dict[str, tuple[str, tuple[float, ...]]] = {
    SCRATCH: ("none", (1e-3, 2e-3, 4e-3, 8e-3)),
    "all weights": ("none", (5e-4, 1e-3, 2e-3, 4e-3)),
    "all, layer decay 0.75": ("full", (5e-4, 1e-3, 2e-3, 4e-3)),
    "attention, positions, head": ("attention", (5e-4, 1e-3, 2e-3, 4e-3)),
    "head only": ("head", (3e-3, 1e-2, 3e-2, 1e-1)),
}


def main() -> int:
    """Train what is missing and print the table."""
    o = arguments()
    out = Path(o.out)
    out.mkdir(parents=True, exist_ok=True)
    with open(out / "log.txt", "a", encoding="utf-8") as log:
        source = pretrained(o, log)
        table = [row(o, name, steps, source, log) for steps in o.steps for name in o.rows]
    print(heading(describe()))
    print(markdown(table))
    return verified(table, out) if o.verify else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="", help="folder of prepared TFDS sets with mnist; empty: where train looks")
    parser.add_argument("--source", default="mnist", help="the set of the first training")
    parser.add_argument("--epochs", type=int, default=5, help="epochs of the first training")
    parser.add_argument("--steps", type=int, nargs="+", default=[50, 300], help="multiples of ten")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", nargs="+", default=[*ROWS], choices=[*ROWS])
    parser.add_argument("--rates", type=float, nargs="+", default=[], help="for all rows; default: each row its own")
    parser.add_argument("--out", default="runs/benchmark", help="folder of all runs, and of log.txt")
    parser.add_argument("--verify", action="store_true", help="convert a fine-tuned run to timm, compared as functions")
    o = parser.parse_args()
    if wrong := [steps for steps in o.steps if steps < 1 or steps % PER_EPOCH]:
        parser.error(f"--steps {wrong[0]}: give multiples of {PER_EPOCH}")
    return o


def pretrained(o: argparse.Namespace, log: Any) -> str:
    """The folder of the run on MNIST, trained if it is not there."""
    from vit_jax.presets.table import preset

    run = preset("mnist").run
    run = replace(run, data=replace(run.data, source=o.source, dir=o.data), epochs=o.epochs)
    return trained(replace(run, name="source", dir=o.out), log)["folder"]


def row(o: argparse.Namespace, name: str, steps: int, source: str, log: Any) -> dict[str, Any]:
    """One row of the table: the rate is chosen by the first seed, then all seeds are trained at it."""
    recipe, rates = ROWS[name]

    def of(rate: float, seed: int) -> dict[str, Any]:
        label = f"{name.replace(', ', '-').replace(' ', '-')}-{steps}-{rate:g}-{seed}"
        run = tuned("" if name == SCRATCH else source, recipe, rate, steps // PER_EPOCH)
        return trained(replace(run, name=label, dir=o.out, seed=seed), log)

    def validation(summary: dict[str, Any]) -> tuple[float, float]:
        found = summary["validation"]["raw"]
        return found["accuracy"], -found["loss"]

    first = {rate: of(rate, 0) for rate in o.rates or rates}
    rate = max(first, key=lambda each: validation(first[each]))
    runs = [first[rate], *(of(rate, seed) for seed in range(1, o.seeds))]
    accuracies = [each["test"]["last"]["accuracy"] for each in runs]
    return {
        "row": name, "steps": steps, "rate": rate, "accuracies": accuracies, "folder": runs[0]["folder"],
        "trained": runs[0]["trained"], "speed": statistics.median(each["speed"] for each in runs),
    }  # fmt: skip


def tuned(source: str, recipe: str, rate: float, epochs: int) -> Any:
    """A run on the digits that starts from `source`, or at random where that is empty."""
    from vit_jax import preset

    fields = {"batch": BATCH, "epochs": epochs, "optim.lr": rate}
    if source:
        start = {"model.image": IMAGE, "init_resize": "timm", "new_head": True}
        return preset("digits", source, {**fields, **start}, tune=recipe).run
    run = preset("digits").run
    model = replace(preset("mnist").run.model, image=IMAGE)
    return replace(run, model=model, batch=BATCH, epochs=epochs, optim=replace(run.optim, lr=rate))


def trained(run: Any, log: Any) -> dict[str, Any]:
    """The summary of a run, which is trained unless it has ended, with its folder, parameters that train and speed."""
    from vit_jax.config.groups import trainable
    from vit_jax.runs import Run
    from vit_jax.training.train import train

    print(f"{run.name} ...", file=sys.stderr, flush=True)
    with contextlib.redirect_stdout(log):
        summary = train(run, preset="finetune")
    folder = Run(summary["folder"])
    model = folder.config().model
    table = (model if model.classes else replace(model, classes=10)).parameters()
    counts = {name: table[name].shape for name in trainable(run.optim, table)}
    speeds = [r["images_per_second"] for r in folder.metrics() if r["kind"] == "train" and r.get("images_per_second")]
    return {**summary, "trained": sum(map(math.prod, counts.values())), "speed": statistics.median(speeds)}


def markdown(table: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table."""
    scratch = {r["steps"]: statistics.fmean(r["accuracies"]) for r in table if r["row"] == SCRATCH}
    lines = [
        "| start | steps | trained | rate | test accuracy, % | ahead | images/s |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in table:
        mean = statistics.fmean(r["accuracies"])
        spread = statistics.stdev(r["accuracies"]) if len(r["accuracies"]) > 1 else 0.0
        ahead = "" if r["row"] == SCRATCH or r["steps"] not in scratch else f"{100 * (mean - scratch[r['steps']]):+.2f}"
        accuracy = f"{100 * mean:.2f} ± {100 * spread:.2f}"
        cells = (r["row"], r["steps"], f"{r['trained']:,}", f"{r['rate']:g}", accuracy, ahead, f"{r['speed']:,.0f}")
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def verified(table: list[dict[str, Any]], out: Path) -> int:
    """Convert the first run that was fine-tuned to timm's layout, compared as functions; the exit code of convert."""
    from convert.__main__ import main as convert

    folder = next(r["folder"] for r in table if r["row"] != SCRATCH)
    sys.argv = ["convert", folder, str(out / "timm"), "--to", "timm", "--verify", "--force"]
    return convert()


if __name__ == "__main__":
    sys.exit(main())
