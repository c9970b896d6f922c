"""Images per second of a trained network in use: `vit_jax.load(FILE).logits(images)` compared with timm, same weights.

    python -m benchmarks.inference [--nets s16] [--batches 1,64] [--rounds 8] [--json OUT]

The file holds random weights in timm's layout. Both sides take the same uint8 images as a numpy array, normalise them
and return the logits as a numpy array, in float32; their logits are compared first. PyTorch runs eager, under
inference_mode; without timm it computes the network of torch_ref. A round is a block of calls of each side, in
alternating order; a ratio is their time over ours, so above 1 ours is faster.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout's own code, however this is started

from benchmarks.machine import describe, heading, interleave, load, spread
from benchmarks.sides import MEAN, NETS, STD, config, data
from vit_jax.machine import backend
from vit_jax.models.vit_config import ViTConfig

Call = Callable[[np.ndarray], np.ndarray]  # uint8 [B, h, w, C] -> float32 [B, K]


def ours(path: Path, batch: int) -> Call:
    """`load(path).logits`."""
    import vit_jax

    network = vit_jax.load(path)
    return lambda images: network.logits(images, batch)


def theirs(path: Path, model: ViTConfig) -> tuple[str, Call]:
    """(timm or torch_ref, its network with the weights of the file)."""
    import torch
    from safetensors.torch import load_file

    if importlib.util.find_spec("timm"):
        from convert.verify.libraries.timm import network

        name, net = "timm", network(model)
        net.load_state_dict(load_file(path))
    else:
        import torch_ref
        from vit_jax.weights.interop import open_weights

        with open_weights(str(path)) as opened:
            name, net = "torch_ref", torch_ref.load(torch_ref.build(model), opened.to_use())
    net.eval()
    mean, std = (torch.tensor(x).view(-1, 1, 1) for x in (MEAN, STD))

    def call(images: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return np.asarray(net((torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255 - mean) / std).numpy())

    return name, call


def write(model: ViTConfig, path: Path) -> None:
    """Random weights of a network as a file in timm's layout."""
    import jax

    import vit_jax
    from vit_jax.models.build import definition, start
    from vit_jax.models.state import merge

    fields = {"mean": MEAN[0], "std": STD[0], "fit": "stretch", "interpolation": "bicubic"}
    vit_jax.export(merge(definition(model), start(model, jax.random.key(0))), path, to="timm", fields=fields)


def compare(net: str, batches: list[int], rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Measure one net at each batch size, print the results and return them."""
    model, rows = config(net).model, []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "timm.safetensors"
        write(model, path)
        name, other = theirs(path, model)
        for batch in batches:
            images, mine = data(model, batch)["image"], ours(path, batch)
            if (difference := float(np.abs(mine(images) - other(images)).max())) > 1e-3:
                raise SystemExit(f"{net}: the logits of ours and {name} differ by {difference:.2g}")
            works = {"ours": lambda mine=mine, x=images: mine(x), name: lambda x=images: other(x)}
            costs = interleave(works, rounds, seconds)
            ratios = [b.median / a.median for a, b in zip(costs["ours"], costs[name], strict=True)]
            speed = {side: batch / sum(all_[1:], all_[0]).median for side, all_ in costs.items()}
            rows.append({"net": net, "batch": batch, "images_per_second": speed, **spread(ratios), "rounds": ratios})
            speeds = ", ".join(f"{side} {value:,.1f} images/s" for side, value in speed.items())
            r = rows[-1]
            print(
                f"{net:6} batch {batch:3}: {speeds}; speed of ours / {name}: "
                f"{r['ratio']:.2f} [{r['low']:.2f}..{r['high']:.2f}] in {rounds} rounds, load {load()}",
                flush=True,
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", default="s16", help=f"which of {', '.join(NETS)}")
    parser.add_argument("--batches", default="1,64", help="images in a call")
    parser.add_argument("--rounds", type=int, default=8, help="blocks of calls of each side")
    parser.add_argument("--seconds", type=float, default=1.5, help="length of a block, at least two calls")
    parser.add_argument("--json", default="", help="file to write all results to")
    o = parser.parse_args()
    if unknown := set(o.nets.split(",")) - set(NETS):
        parser.error(f"--nets: there is no {', '.join(sorted(unknown))}; there are {', '.join(NETS)}")
    if not importlib.util.find_spec("torch"):
        parser.error("PyTorch, the other side, is not installed: pip install 'vit-jax[torch]'")
    backend.configure_jax()
    machine = describe()
    print(heading(machine), flush=True)
    batches = [int(word) for word in o.batches.split(",")]
    rows = [row for net in o.nets.split(",") for row in compare(net, batches, o.rounds, o.seconds)]
    if o.json:
        Path(o.json).write_text(
            json.dumps({"machine": machine, "command": " ".join(sys.argv), "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
