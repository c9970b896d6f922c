"""What teaching notebooks claim, tested: networks that differ in one thing, at equal budget, with three seeds.

    python -m benchmarks.claims                                    # the verdicts, from the figures that are stored
    python -m benchmarks.claims EXPERIMENT ... [--data TFDS]       # measure again what they stand on
    python -m benchmarks.claims --png docs/claims.png              # and draw them

The experiments: networks, depth, parts, distillation and gelu on CIFAR (TFDS is the folder of prepared sets), length on
strings of digits, and steps, which is timed and wants an idle machine. Each takes ten to thirty minutes of one core;
its figures go to benchmarks/results/claims/. `--scale 0.01` tries one in small, and stores nothing.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # the checkout's own code, however this is started

from benchmarks.claims import images, sequences
from benchmarks.claims.claims import CLAIMS
from benchmarks.claims.page import draw, markdown
from benchmarks.claims.session import RESULTS, Session, measure
from vit_jax.machine.backend import configure_jax

EXPERIMENTS = {**images.EXPERIMENTS, **sequences.EXPERIMENTS}


def main() -> int:
    """Measure what is named, and print the verdicts."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.claims", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help=", ".join(EXPERIMENTS))
    parser.add_argument("--data", default="", help="folder of prepared TFDS sets; empty: where train looks")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the steps; other than 1: stores nothing")
    parser.add_argument("--png", default="", help="file to draw the verdicts to")
    o = parser.parse_args()
    if unknown := [name for name in o.experiments if name not in EXPERIMENTS]:
        parser.error(f"there is no experiment {unknown[0]}; there are {', '.join(EXPERIMENTS)}")
    if o.seeds < 2:
        parser.error(f"--seeds is {o.seeds}: an interval needs 2 or more")
    if not 0 < o.scale <= 1:
        parser.error(f"--scale is {o.scale}: give a share of the steps, above 0 and up to 1")
    if o.data and not Path(o.data).is_dir():
        parser.error(f"--data {o.data} is no folder: give that of the prepared sets, with cifar10/ and cifar100/ in it")
    configure_jax()
    with tempfile.TemporaryDirectory() as scratch:
        folder = RESULTS if o.scale == 1 else Path(scratch)
        for name in o.experiments:
            measure(name, EXPERIMENTS[name], Session(tuple(range(o.seeds)), o.data, o.scale), folder)
        claims = [claim for claim in CLAIMS if claim.experiment in (o.experiments or EXPERIMENTS)]
        print(markdown(claims, folder))
        if o.png:
            draw(claims, o.png, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
