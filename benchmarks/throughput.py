"""Images per second and MFU of training a ViT at full size in bfloat16, by ours or by others.

    python -m benchmarks.throughput SIDE [--net vit-b16] [--image 224] [--batches 64,128,256] [--json OUT]

The sides are ours, ours with plain attention, the same network in flax's layers (plain.py), and timm's network, eager
and by torch.compile, under autocast.

One side in a process, because jax and torch need different CUDA libraries. Both do a whole step (forward, backward,
AdamW; weights float32, products bfloat16) on uint8 images that are on the device already. Steps are sent one after the
other and waited for at the end of a block; the fastest batch size is the result, and those that do not fit are left
out. MFU is three times the FLOPs of the forward pass (two per multiply-add) over the peak that the maker of the GPU
states for dense bfloat16, or, of a device that vit_jax.machine.targets does not know, over that of the fastest
product of large matrices.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout's own code, however this is started

from benchmarks.machine import measure
from benchmarks.sides import MEAN, STD, data, deterministic, engine_of
from vit_jax.augmentation.config import ImageAugment
from vit_jax.config.run import RunConfig
from vit_jax.data.images.config import ImageData
from vit_jax.machine import backend
from vit_jax.machine.division import step_flops
from vit_jax.machine.targets import published
from vit_jax.models.vit_config import sized_config

Steps = Callable[[int], None]  # does this many steps and waits for the last


def ours(run: RunConfig) -> Steps:
    """The training step of vit_jax."""
    import jax

    from vit_jax.models.build import start

    batch = data(run.model, run.batch)
    engine = engine_of(run, batch)
    state, on_device = engine.start(start(run.model, jax.random.key(0))), jax.device_put(batch, engine.devices.sharded)

    def steps(n: int) -> None:
        nonlocal state
        for _ in range(n):
            state, _metrics = engine.train(state, on_device)
        jax.block_until_ready(state)

    return steps


def flax(run: RunConfig) -> Steps:
    """The network in flax's layers, and optax.adamw."""
    import jax
    from flax import nnx

    from benchmarks.plain import PlainViT, Trainer

    batch = jax.device_put(data(run.model, run.batch))
    trainer = Trainer(PlainViT(run.model, nnx.Rngs(0), jax.numpy.bfloat16), run.optim, MEAN, STD)

    def steps(n: int) -> None:
        for _ in range(n):
            trainer.step(batch["image"], batch["label"])
        jax.block_until_ready(trainer.parameters)

    return steps


def timm(run: RunConfig, compiling: bool = True) -> Steps:
    """timm's network of the same config under autocast, by torch.compile or eager."""
    import torch
    from torch.nn import functional as F

    from convert.verify.libraries.timm import network

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    model = network(run.model).float().to(device).train()
    o, compiled = run.optim, torch.compile(model) if compiling else model
    optimizer = torch.optim.AdamW(model.parameters(), o.lr, weight_decay=o.weight_decay, fused=device == "cuda")
    batch = data(run.model, run.batch)
    images, labels = (torch.from_numpy(batch[name]).to(device) for name in ("image", "label"))
    mean, std = (torch.tensor(x, device=device).view(-1, 1, 1) for x in (MEAN, STD))

    def steps(n: int) -> None:
        for _ in range(n):
            optimizer.zero_grad()
            with torch.autocast(device, torch.bfloat16):
                logits = compiled((images.permute(0, 3, 1, 2).float() / 255 - mean) / std)
                value = F.cross_entropy(logits, labels.long())
            value.backward()
            optimizer.step()
        float(value.detach())  # waits

    return steps


STEPS: dict[str, Callable[[RunConfig], Steps]] = {
    "ours": ours,
    "ours-plain": lambda run: ours(replace(run, attention_kernel="plain")),
    "flax": flax,
    "timm-eager": partial(timm, compiling=False),
    "timm": timm,
}


def peak(side: str, size: int) -> tuple[str, float, bool]:
    """(device, its FLOP/s in bfloat16 products, whether its maker states them; else they are measured)."""
    if not side.startswith("timm"):
        import jax

        device, a = jax.devices()[0].device_kind, jax.numpy.ones((size, size), "bfloat16")
        product = jax.jit(jax.numpy.matmul)
        work: Callable[[], Any] = lambda: product(a, a).block_until_ready()  # noqa: E731
        devices = jax.device_count() if jax.default_backend() != "cpu" else 1
    else:
        import torch

        cuda = torch.cuda.is_available()
        device, devices = (torch.cuda.get_device_name(), 1) if cuda else ("cpu", 1)
        b = torch.ones((size, size), dtype=torch.bfloat16, device="cuda" if cuda else "cpu")
        work = lambda: float((b @ b)[0, 0])  # noqa: E731
    if stated := published(device).peak:
        return device, devices * stated, True
    work()
    return device, devices * 2 * size**3 / min(measure(work, 5).seconds), False


def measured(side: str, run: RunConfig, batches: list[int], steps: int, rounds: int, size: int) -> dict[str, Any]:
    """{"device", "peak", "stated", "rows": [{"batch", "images_per_second", "mfu"} or {"batch", "error"}], "best"}."""
    device, limit, stated = peak(side, size)
    rows: list[dict[str, Any]] = []
    for batch in batches:
        try:
            work = STEPS[side](replace(run, batch=batch))
            work(2)  # the first compiles
            seconds = statistics.median(measure(lambda work=work: work(steps), rounds).seconds) / steps
        except Exception as error:  # out of memory, as each library says it: smaller batches still count
            rows.append({"batch": batch, "error": f"{type(error).__name__}: {error}"[:200]})
            continue
        mfu = step_flops(run.model, batch) / seconds / limit
        rows.append({"batch": batch, "images_per_second": batch / seconds, "ms": 1e3 * seconds, "mfu": mfu})
    done = [row for row in rows if "mfu" in row]
    best = max(done, key=lambda row: row["mfu"]) if done else None
    return {"side": side, "device": device, "peak": limit, "stated": stated, "rows": rows, "best": best}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=STEPS)
    parser.add_argument("--net", default="vit-b16", help="a size and patch, as of the presets vit-SIZEPATCH")
    parser.add_argument("--image", type=int, default=224, help="height and width of the images")
    parser.add_argument("--depth", type=int, default=0, help="blocks; 0: as many as the net has")
    parser.add_argument("--batches", default="64,128,256", help="batch sizes to try")
    parser.add_argument("--steps", type=int, default=20, help="steps in a block")
    parser.add_argument("--rounds", type=int, default=3, help="blocks, of which the median counts")
    parser.add_argument("--product", type=int, default=8192, help="size of the matrices of the measured peak")
    parser.add_argument("--json", default="", help="file to write all results to")
    o = parser.parse_args()
    if not o.side.startswith("timm"):
        backend.configure_jax()
    model = replace(sized_config(o.net), image=o.image)
    model = replace(model, depth=o.depth or model.depth)
    run = deterministic(RunConfig("classify", model, ImageData(), ImageAugment()), 1)
    batches = [int(word) for word in o.batches.split(",")]
    found = measured(o.side, replace(run, compute_dtype="bfloat16"), batches, o.steps, o.rounds, o.product)
    how = "stated" if found["stated"] else "measured"
    print(f"{found['device']}: {how} peak of bfloat16 products {found['peak'] / 1e12:.3g} TFLOP/s")
    for row in found["rows"]:
        text = row.get("error") or f"{row['images_per_second']:,.1f} images/s, {row['ms']:.1f} ms, MFU {row['mfu']:.1%}"
        print(f"{o.net} {o.side} batch {row['batch']}: {text}")
    if o.json:
        Path(o.json).write_text(json.dumps(found, indent=1) + "\n")
    return 0 if found["best"] else 1


if __name__ == "__main__":
    sys.exit(main())
