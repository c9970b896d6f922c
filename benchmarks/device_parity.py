"""Whether an accelerator computes what the CPU computes: whole trainings in float64, and fused attention's error.

    python -m benchmarks.device_parity [--steps 20] [--json OUT]

Trainings: the same command in one process with JAX_PLATFORMS=cpu and in one with the accelerator, in float64, of a
classifier, a translator and a captioner, on data that are part of the package. Compared are what is logged of every
step, by the relative difference, and the weights after the last, by the norm of the difference over the norm.

Attention: its context and its three gradients in bfloat16, plain and fused, each compared with the formula in float64
on the CPU, by the norm of the difference over the norm.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout's own code, however this is started

from vit_jax.machine.backend import cores

HERE = Path(__file__).parents[1]
TRAININGS = {
    "classify": "digits --model.dropout 0.1",
    "classify by pmap": "digits --parallel pmap",
    "classify, scan and remat": "digits --scan --remat full --accumulate 2",
    "translate": "numbers",
    "caption": "shapes",
}
LIMIT = 1e-10  # of float64, along a training
CORES = {  # (images, heads, queries, keys, width of a head), causal
    "B/16": ((8, 12, 197, 197, 64), False),
    "even": ((8, 12, 256, 256, 64), False),
    "256x6": ((16, 8, 65, 65, 32), False),
    "causal": ((4, 8, 128, 128, 64), True),
    "odd, causal": ((4, 8, 127, 127, 64), True),
    "cross": ((4, 8, 31, 197, 64), False),
}
TIMES_PLAIN = 2.0  # how many times the error of the plain form the fused one may have


def train(words: str, steps: int, platform: str, folder: Path) -> tuple[list[dict[str, float]], dict[str, Any]]:
    """(rows of the log, {name of a weight: array}) of a training in a process on a platform."""
    from vit_jax.config.trees import flatten
    from vit_jax.runs import Run
    from vit_jax.weights.load import weights

    command = [sys.executable, "-m", "vit_jax.train", *words.split(), "--max-steps", str(steps), "--log-every", "1"]
    command += ["--compute-dtype", "float64", "--dir", str(folder), "--name", platform]
    environment = {**os.environ, "JAX_PLATFORMS": platform, "PYTHONPATH": str(HERE)}
    done = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[1:])} on {platform} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    lines = (json.loads(line) for line in (folder / platform / "metrics.jsonl").open())
    rows = [row for row in lines if "loss" in row]
    run = Run(folder / platform)
    return rows, flatten(weights(run, run.config().model, "last", ema=False)[1])


def compare_trainings(steps: int, platform: str) -> list[dict[str, Any]]:
    """For each training the greatest difference of what is logged, and that of the weights."""
    found = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(max(1, cores() // 2)) as pool:
        started = {
            name: [pool.submit(train, words, steps, each, Path(folder) / str(i)) for each in ("cpu", platform)]
            for i, (name, words) in enumerate(TRAININGS.items())
        }
        for name, pair in started.items():
            (here, mine), (there, its) = (each.result() for each in pair)
            logged = max(
                abs(one[key] - other[key]) / max(abs(one[key]), 1e-6)
                for one, other in zip(here, there, strict=True)
                for key in ("loss", "grad_norm", "param_norm", "update_norm")
            )
            # Of all weights together: a key's bias has no gradient but rounding, of which Adam makes steps of its own.
            weights = math.sqrt(sum(float(((mine[key] - its[key]) ** 2).sum()) for key in mine))
            weights /= math.sqrt(sum(float((mine[key] ** 2).sum()) for key in mine))
            found.append({"what": name, "steps": len(here), "logged": logged, "weights": weights})
            print(f"{name:28} {len(here)} rows: log {logged:.1e}, weights {weights:.1e}", flush=True)
    return found


def formula(q: Any, k: Any, v: Any, causal: bool) -> Any:
    """Attention's context by its definition; the softmax in float32, in float64 of float64."""
    import jax
    import jax.numpy as jnp

    scores = jnp.einsum("bhqd,bhkd->bhqk", q * q.shape[-1] ** -0.5, k).astype(jnp.promote_types(q.dtype, jnp.float32))
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    return jax.nn.softmax(scores).astype(v.dtype) @ v


def values(core: Any, causal: bool, inputs: list[Any], of: Any, dtype: Any) -> list[Any]:
    """The context of [q, k, v], and the gradients of the sum of context * of by each, as float64 arrays."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    summed = jnp.promote_types(dtype, jnp.float32)
    weight = jnp.asarray(of, summed)

    def total(q: Any, k: Any, v: Any) -> Any:
        context = core(q, k, v, causal)
        return (context * weight).sum(dtype=summed), context

    run = jax.jit(jax.grad(total, (0, 1, 2), has_aux=True))
    gradients, context = run(*(jnp.asarray(x, dtype) for x in inputs))
    return [np.asarray(x, np.float64) for x in (context, *gradients)]


def attention_errors() -> list[dict[str, Any]]:
    """For each of CORES the error of the plain and of the fused form in bfloat16."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from vit_jax.machine import targets
    from vit_jax.models.fused import fused_attention, implementation

    def fused(q: Any, k: Any, v: Any, causal: bool) -> Any:
        return fused_attention(q, k, v, None, q.shape[-1] ** -0.5, causal, targets.HERE.capability)

    found = []
    for name, ((b, h, nq, nk, dh), causal) in CORES.items():
        draw = np.random.default_rng(0)
        q, k, v, of = (draw.normal(size=(b, h, n, dh)) for n in (nq, nk, nk, nq))
        inputs = [np.asarray(jnp.asarray(x, jnp.bfloat16), np.float64) for x in (q, k, v)]
        with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
            exact = values(formula, causal, inputs, of, jnp.float64)
        row: dict[str, Any] = {"what": name, "by": implementation("bfloat16", dh, targets.HERE.capability)}
        for form, core in (("plain", formula), ("fused", fused)):
            pairs = zip(values(core, causal, inputs, of, jnp.bfloat16), exact, strict=True)
            row[form] = [float(np.linalg.norm(one - other) / np.linalg.norm(other)) for one, other in pairs]
        found.append(row)
        told = "; ".join(f"{form} {' '.join(f'{x:.1e}' for x in row[form])}" for form in ("plain", "fused"))
        print(f"attention {name:12} by {row['by']:5}: context, dq, dk, dv: {told}", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="of each training")
    parser.add_argument("--platform", default="cuda", help="as JAX_PLATFORMS names it: cuda, tpu; cpu: to try this")
    parser.add_argument("--json", default="", help="file to write all results to")
    o = parser.parse_args()
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # several processes share the device
    trainings = compare_trainings(o.steps, o.platform)
    attention = attention_errors()
    import jax

    device = jax.devices()[0].device_kind
    wrong = [row["what"] for row in trainings if not max(row["logged"], row["weights"]) < LIMIT]
    for row in attention:
        if not all(one < TIMES_PLAIN * other for one, other in zip(row["fused"], row["plain"], strict=True)):
            wrong.append(f"attention {row['what']}")
    print(f"{device}, jax {jax.__version__}: {'not within the limits: ' + ', '.join(wrong) if wrong else 'all agree'}")
    if o.json:
        Path(o.json).write_text(
            json.dumps({"device": device, "trainings": trainings, "attention": attention}, indent=1)
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
