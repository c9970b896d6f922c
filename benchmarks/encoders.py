"""Encoders of timm and Hugging Face, fine-tuned at another size by the commands and given back to their library.

    python -m benchmarks.encoders [--source digits] [--data TFDS] [--epochs 10] [--out runs/encoders]

A timm DINOv3, and a SiglipVisionModel of transformers, both small, with random weights, are saved by their own library
for images of 32 px in --out. Each row is a way there and back: `vit_jax.train --init` at 48 px with layer decay, then
`convert`, each a process of its own. Its library opens the folder, and its logits on random pixels are compared with
those of `vit_jax.load`. The weights know nothing, so accuracies show that training works, and not what these encoders
are worth.

seconds     of each command, from its start to its end, compilation included
accuracy    on the test split, after the last step
difference  of logits, as a share of the largest (float32)
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout's own code, however this is started

from benchmarks.machine import describe, heading
from convert.verify.libraries import load

FILE, IMAGE = 32, 48  # pixels
WIDTH, DEPTH, HEADS, HIDDEN, PATCH = 64, 3, 2, 256, 8


class Way(NamedTuple):
    """A folder, what of it trains, and how it goes back."""

    folder: str
    train: str
    back: str = ""


WAYS = (
    Way("dinov3", "--optim.layer-decay 0.75"),
    Way("siglip", "--optim.layer-decay 0.75 --model.pool mean"),
    Way("dinov3", "--lora.rank 8 --lora.maps *.attention.* *.mlp.*"),
    Way("siglip", "--optim.layer-decay 0.75", "--to timm"),
)


def main() -> int:
    """Go each way and print the table."""
    o = arguments()
    out = Path(o.out)
    out.mkdir(parents=True, exist_ok=True)
    for name, save in (("dinov3", dinov3), ("siglip", siglip)):
        if not (out / name).exists():
            save(out / name)
    print(heading(describe()))
    print("| commands | seconds | accuracy, % | opened by | difference |\n|---|---|---|---|---|")
    for number, way in enumerate(WAYS, 1):
        print(gone(way, f"way-{number}", o, out), flush=True)
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", default="digits", help="the set of images")
    parser.add_argument("--data", default="", help="folder of prepared TFDS sets; empty: where train looks")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--out", default="runs/encoders", help="a folder for all that is written")
    return parser.parse_args()


def dinov3(path: Path) -> None:
    """Save timm's DINOv3 as timm does."""
    import torch

    timm = load("timm")
    from timm.models import save_for_hf

    torch.manual_seed(0)
    fields = {"img_size": FILE, "patch_size": PATCH, "embed_dim": WIDTH, "depth": DEPTH, "num_heads": HEADS}
    model = timm.create_model("vit_small_patch16_dinov3_qkvb", **fields, num_classes=0)
    model.pretrained_cfg = dict(model.pretrained_cfg, input_size=(3, FILE, FILE), num_classes=0)
    save_for_hf(model, str(path), model_config={"model_args": fields}, safe_serialization=True)


def siglip(path: Path) -> None:
    """Save Hugging Face's SigLIP, its image tower, as transformers does."""
    import torch

    transformers = load("transformers")
    torch.manual_seed(0)
    config = transformers.SiglipVisionConfig(
        hidden_size=WIDTH, intermediate_size=HIDDEN, num_hidden_layers=DEPTH, num_attention_heads=HEADS,
        image_size=FILE, patch_size=PATCH,
    )  # fmt: skip
    transformers.SiglipVisionModel(config).save_pretrained(path)
    size = {"height": FILE, "width": FILE}
    transformers.SiglipImageProcessorPil(size=size).save_pretrained(path)


def gone(way: Way, name: str, o: argparse.Namespace, out: Path) -> str:
    """A row of the table, after its commands."""
    data = f"--data.source {o.source}" + f" --data.dir {shlex.quote(str(Path(o.data).resolve()))}" * bool(o.data)
    line = f"--init {way.folder} --new-head --model.image {IMAGE} --init-resize timm {way.train}"
    rest = f"{data} --epochs {o.epochs} --optim.lr {o.rate} --name {name}"
    back = f"runs/{name} {name}-back {way.back}".strip()
    seconds = [done("vit_jax.train", f"{line} {rest}", out), done("convert", back, out)]
    summary = json.loads((out / "runs" / name / "summary.json").read_text())
    library, difference = opened(out, name)
    cells = (
        f"`train {line}`; `convert {back}`",
        " + ".join(f"{each:.0f}" for each in seconds),
        f"{100 * summary['test']['last']['accuracy']:.1f}",
        library,
        f"{difference:.1e}",
    )
    return f"| {' | '.join(cells)} |"


def done(module: str, line: str, folder: Path) -> float:
    """The seconds of a command, in a process of its own that writes into log.txt."""
    print(f"python -m {module} {line}", file=sys.stderr, flush=True)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    began = time.monotonic()
    with open(folder / "log.txt", "a", encoding="utf-8") as log:
        command = [sys.executable, "-m", module, *shlex.split(line)]
        subprocess.run(command, cwd=folder, env=environment, check=True, stdout=log, stderr=log)
    return time.monotonic() - began


def opened(out: Path, name: str) -> tuple[str, float]:
    """(the class of its own library that opens what came back, how far its logits are from ours, of the largest)."""
    import torch

    import vit_jax

    ours = vit_jax.load(out / "runs" / name)
    pixels = np.random.default_rng(0).integers(0, 256, (8, IMAGE, IMAGE, 3)).astype(np.uint8)
    expected = ours.logits(pixels)
    mean, std = (np.array(each) for each in (ours.preprocess.mean, ours.preprocess.std))
    x = torch.tensor((pixels / 255 - mean) / std, dtype=torch.float32).permute(0, 3, 1, 2)
    library, model = loaded(out / f"{name}-back")
    with torch.no_grad():
        theirs = model(x)
    theirs = getattr(theirs, "logits", theirs).numpy()
    return library, float(np.abs(theirs - expected).max() / np.abs(expected).max())


def loaded(path: Path) -> tuple[str, Any]:
    """(its class, the network) of a folder that was given back, opened by its library."""
    config = json.loads((path / "config.json").read_text())
    if "architecture" in config:
        return "timm", load("timm").create_model(f"local-dir:{path}", pretrained=True).eval()
    (name,) = config["architectures"]
    return f"transformers, {name}", getattr(load("transformers"), name).from_pretrained(path).eval()


if __name__ == "__main__":
    sys.exit(main())
