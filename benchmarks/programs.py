"""Programs with float32, float16 and int8 weights beside PyTorch, eager and compiled, of the same network in one run.

    python -m benchmarks.programs runs/digits runs/scenes vit-ti16 [--batch 8] [--rounds 8] \
        [--json OUT.json] [--markdown OUT.md]

A name is a run of images, or a preset, whose weights are then random and whose int8 is calibrated by noise: such a
network has no accuracy. All sides compute by one thread, from normalised images to logits; a round is a block of calls
of each side, in alternating order. Megabytes, agreement, the largest change of a probability and accuracy are those
that X.onnx.json states.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout's own code, however this is started

from benchmarks.machine import describe, heading, interleave, load
from vit_jax.config.trees import flatten
from vit_jax.machine import backend
from vit_jax.models.state import split_model

WEIGHTS = ("float32", "float16", "int8")


def opened(name: str, folder: Path) -> tuple[Any, Any, dict[str, Any]]:
    """(what is exported, the network, arguments of that for int8) of a run, or of a preset with random weights."""
    import vit_jax
    from vit_jax import runs

    if runs.Run(name).exists():
        return name, vit_jax.load(name).model, {}
    network = vit_jax.build(name)
    h, w, channels = network.config.pixels()
    pixels = np.random.default_rng(0).integers(0, 256, (300, h, w, channels), np.uint8)
    np.savez(folder / "noise.npz", train_images=pixels, train_labels=np.arange(300) % network.config.classes)
    weights = folder / "random.safetensors"
    vit_jax.export(network, weights, fields={each: [0.5] * channels for each in ("mean", "std")})
    return str(weights), network, {"calibrate": str(folder / "noise.npz")}


def by_torch(network: Any) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
    """PyTorch's twin of a network, eager and compiled."""
    import torch

    import torch_ref

    torch.set_num_threads(1)
    weights = {name: np.asarray(x) for name, x in flatten(split_model(network)[1]).items()}
    eager = torch_ref.load(torch_ref.build(network.config), weights).eval()

    def calls(net: Any) -> Callable[[np.ndarray], np.ndarray]:
        def call(images: np.ndarray) -> np.ndarray:
            with torch.inference_mode():
                return np.asarray(net(torch.from_numpy(images).permute(0, 3, 1, 2)).numpy())

        return call

    return {"torch eager": calls(eager), "torch compiled": calls(torch.compile(eager))}


def by_onnxruntime(path: Path) -> Callable[[np.ndarray], np.ndarray]:
    """A program of images, run by one thread of ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda images: np.asarray(session.run(None, {"images": images})[0])


def compare(name: str, batch: int, rounds: int, seconds: float) -> dict[str, Any]:
    """What one network costs and gives on each side."""
    import vit_jax

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        source, network, calibration = opened(name, folder)
        sides, rows = {}, {}
        for weights in WEIGHTS:
            path = folder / f"{weights}.onnx"
            more = {} if weights == "float32" else calibration
            vit_jax.export(source, path, takes="images", weights=weights, **more)
            told = json.loads(Path(f"{path}.json").read_text())["weights"].get("measured", {})
            accuracy = told.get("metrics", {}).get("accuracy", [None, None])[1]
            rows[weights] = {
                "mb": path.stat().st_size / 1e6,
                "agreement": told.get("agreement"),
                "largest_change": told.get("largest_change"),
                "accuracy": None if calibration else accuracy,
            }
            sides[weights] = by_onnxruntime(path)
        sides |= by_torch(network)
        images = np.random.default_rng(1).standard_normal((batch, *network.config.pixels()), np.float32)
        apart = float(np.abs(sides["torch eager"](images) - sides["float32"](images)).max())
        if calibration and apart > 1e-3:  # a run's program has its temperature in the head
            raise SystemExit(f"{name}: the logits of PyTorch and of the program differ by {apart:.2g}")
        costs = interleave({side: lambda call=call: call(images) for side, call in sides.items()}, rounds, seconds)
    plain = sum(costs["float32"][1:], costs["float32"][0]).median
    for side, all_ in costs.items():
        total = sum(all_[1:], all_[0])
        row = rows.setdefault(side, {})
        row |= {"ms": 1e3 * total.median / batch, "cpu_ms": total.summary()["cpu_ms"] / batch}
        row["ratio"] = total.median / plain
    return {"net": name, "batch": batch, "load": load(), "rows": rows}


def table(found: dict[str, Any]) -> str:
    """What `compare` found, in Markdown."""
    lines = [f"{found['net']}, batch {found['batch']}, load {found['load']}", "",
             "| | MB | agreement | largest change | accuracy | ms an image | CPU ms | time of float32 |",
             "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for side, row in found["rows"].items():
        numbers = [row.get(key) for key in ("mb", "agreement", "largest_change", "accuracy", "ms", "cpu_ms", "ratio")]
        lines.append(f"| {side} | " + " | ".join("" if x is None else f"{x:.4g}" for x in numbers) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", help="runs, or presets")
    parser.add_argument("--batch", type=int, default=8, help="images in a call")
    parser.add_argument("--rounds", type=int, default=8, help="blocks of calls of each side")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of a block, at least two calls")
    parser.add_argument("--json", default="", help="file to write all results to")
    parser.add_argument("--markdown", default="", help="file to write the tables to, as a page of benchmarks/results")
    o = parser.parse_args()
    backend.configure_jax()
    machine = describe()
    print(heading(machine), flush=True)
    rows = []
    for name in o.names:
        rows.append(compare(name, o.batch, o.rounds, o.seconds))
        print(f"\n{table(rows[-1])}", flush=True)
    command = "python -m benchmarks.programs " + " ".join(sys.argv[1:])
    if o.json:
        written = {"machine": machine, "command": command, "rows": rows}
        Path(o.json).write_text(json.dumps(written, indent=1) + "\n")
    if o.markdown:
        about = " ".join((__doc__ or "").split("\n\n")[2].split())
        title = f"# Programs with smaller weights beside PyTorch, {machine['date']}"
        parts = [title, f"```\n{command}\n```", heading(machine), about, *map(table, rows)]
        Path(o.markdown).write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
