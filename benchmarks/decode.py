"""Speed of decoding: `vit_jax.decode.search` compared with `generate` of transformers, same weights and cores.

    python -m benchmarks.decode [--size opus] [--batches 1,16] [--beams 1,4] [--cores 1] [--rounds 6] [--json OUT]

A Marian model of the size of opus-mt-en-de (512 wide, 6 + 6 blocks, 58,101 ids), or with --size t5-small a T5 of that
size (the same with 32,128 ids), with random weights in float32 is saved by transformers and loaded by ours. Both
translate the same sources of 20 tokens into 32 tokens, whose end is banned until then, with a cache; beams of 1 are
greedy search. A round is a block of calls of each side in alternating order, after the first call, which compiles, has
been timed by itself. A ratio is their time over ours, so above 1 ours is faster. The last line compares ours with
itself without a cache, which computes the whole prefix at each step.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout's own code, however this is started

from benchmarks.machine import Cost, describe, heading, interleave, load, spread
from vit_jax.config.decoding import Decoding
from vit_jax.machine import backend
from vit_jax.text.tokenizer import Ids

SIZES: dict[str, dict[str, int]] = {
    "opus": dict(vocab_size=58101, d_model=512, layers=6, heads=8, ffn=2048),
    "t5-small": dict(vocab_size=32128, d_model=512, layers=6, heads=8, ffn=2048),
    "t5-tiny": dict(vocab_size=128, d_model=32, layers=2, heads=2, ffn=48),
    "tiny": dict(vocab_size=101, d_model=32, layers=1, heads=2, ffn=48),
}
SOURCE, TOKENS = 20, 32
GOAL, GOAL_T5, GOAL_CACHED = {"AMD": 1.2, "Intel": 1.0}, 1.5, 4.0
Call = Callable[[], np.ndarray]  # -> the tokens of the best answers [B, TOKENS]


def marian(size: str) -> Any:
    """A Marian model of transformers with random weights."""
    import torch
    import transformers

    s, last = SIZES[size], SIZES[size]["vocab_size"] - 1
    sides = {f"{side}_{name}": s[key] for side in ("encoder", "decoder")
             for name, key in (("layers", "layers"), ("attention_heads", "heads"), ("ffn_dim", "ffn"))}  # fmt: skip
    torch.manual_seed(0)
    config = transformers.MarianConfig(
        vocab_size=last + 1, d_model=s["d_model"], max_position_embeddings=512, activation_function="swish",
        scale_embedding=True, pad_token_id=last, eos_token_id=0, decoder_start_token_id=last, forced_eos_token_id=None,
        init_std=s["d_model"] ** -0.5, **sides,
    )  # fmt: skip
    return transformers.MarianMTModel(config).eval()


def t5(size: str) -> Any:
    """A T5 of transformers with random weights."""
    import torch
    import transformers

    s = SIZES[size]
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=s["vocab_size"], d_model=s["d_model"], d_kv=s["d_model"] // s["heads"], d_ff=s["ffn"],
        num_layers=s["layers"], num_heads=s["heads"], decoder_start_token_id=0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config).eval()


def ids_of(size: str) -> dict[str, int]:
    """The ids of padding, with which a target begins, and of the end."""
    return dict(pad=0, end=1) if size.startswith("t5") else dict(pad=SIZES[size]["vocab_size"] - 1, end=0)


def theirs(model: Any, source: np.ndarray, beam: int) -> Call:
    """`generate` with its cache."""
    import torch
    import transformers

    pad, end = model.config.pad_token_id, model.config.eos_token_id
    config = transformers.GenerationConfig(
        num_beams=beam, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False, use_cache=True,
        pad_token_id=pad, eos_token_id=end, decoder_start_token_id=pad,
    )  # fmt: skip
    given = torch.from_numpy(source).long()
    mask = torch.ones_like(given)

    def call() -> np.ndarray:
        with torch.inference_mode():
            return np.asarray(model.generate(given, attention_mask=mask, generation_config=config)[:, 1:].numpy())

    return call


def ours(model: Any, source: np.ndarray, beam: int, special: dict[str, int], cached: bool = True) -> Call:
    """`search`, compiled with the weights as arguments."""
    import jax
    import jax.numpy as jnp

    from vit_jax.decode.search import search
    from vit_jax.models.attention import attention_mask
    from vit_jax.models.decoder import Cache
    from vit_jax.models.state import merge, split_model

    definition, tree = split_model(model)
    ids = Ids(pad=special["pad"], begin=special["pad"], end=special["end"])
    # Of the tokens that are counted here the end would be one: so it is banned until after the last.
    d = Decoding(beam=beam, min_length=TOKENS + 1)
    rows = jnp.ones(len(source), bool)

    def anew(network: Any, source: Any) -> tuple[Any, Any, Any]:
        """(step, take, cache) that compute every prefix whole, and the head for its last token alone."""
        memory = network.encode(source)
        causal = attention_mask(len(source), TOKENS, TOKENS, causal=True)

        def step(tokens: Any, cache: Any) -> Any:
            tokens_so_far, place = cache
            tokens_so_far = jax.lax.dynamic_update_slice_in_dim(tokens_so_far, tokens[:, None], place, axis=1)
            y = network.decoder(network.target(tokens_so_far, network.table, network.dtype), memory, causal, None)
            return network.logits(jax.lax.dynamic_index_in_dim(y, place, 1, keepdims=False)), (tokens_so_far, place + 1)

        start = jnp.zeros((len(source), TOKENS), jnp.int32), jnp.zeros((), jnp.int32)
        return step, lambda cache, rows: (cache[0][rows], cache[1]), start

    @partial(jax.jit, **backend.few_rows())  # as vit_jax.tasks.generated compiles it
    def run(tree: Any, source: Any) -> Any:
        network = merge(definition, tree)
        if cached:
            parts = network.decode_step, Cache.take, network.init_cache(network.encode(source), None, TOKENS)
        else:
            parts = anew(network, source)
        return search(*parts, rows, ids, d, TOKENS).tokens[:, 0]

    given = jnp.asarray(source, jnp.int32)
    return lambda: np.asarray(run(tree, given))


def first(call: Call) -> tuple[float, float, np.ndarray]:
    """(wall seconds, CPU seconds, tokens) of the first call."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = call()
    return time.perf_counter() - wall, time.process_time() - cpu, found


def ratios(costs: dict[str, list[Cost]], over: str, under: str) -> dict[str, Any]:
    """CPU and wall time of one side over that of another, in each round."""
    pairs = list(zip(costs[over], costs[under], strict=True))
    cpu = [(a.cpu / len(a.seconds)) / (b.cpu / len(b.seconds)) for a, b in pairs]
    wall = [a.median / b.median for a, b in pairs]
    return {name: {**spread(rounds), "rounds": rounds} for name, rounds in (("CPU", cpu), ("wall", wall))}


def per_call(costs: list[Cost]) -> dict[str, float]:
    """Seconds of a call: CPU (mean) and wall (median)."""
    every = sum(costs[1:], costs[0])
    return {"CPU": every.cpu / len(every.seconds), "wall": every.median}


def compare(
    hf: Any, model: Any, batch: int, beam: int, o: argparse.Namespace, uncached: bool = False
) -> dict[str, Any]:
    """Measure both sides at one batch and beam, or ours with and without its cache; print it and return the figures."""
    source = np.random.default_rng(0).integers(2, model.config.source_vocabulary - 1, (batch, SOURCE))
    special, name = ids_of(o.size), "uncached" if uncached else "generate"
    other = ours(model, source, beam, special, False) if uncached else theirs(hf, source, beam)
    works = {"ours": ours(model, source, beam, special), name: other}
    firsts = {side: first(work) for side, work in works.items()}
    equal = int((firsts["ours"][2] == firsts[name][2]).all(1).sum())
    costs = interleave(works, o.rounds, o.seconds)
    each, found = {side: per_call(cost) for side, cost in costs.items()}, ratios(costs, name, "ours")
    seconds = ", ".join(f"{side} {x['CPU']:.2f} s of CPU and {x['wall']:.2f} s" for side, x in each.items())
    listed = ", ".join(f"{what} {r['ratio']:.2f} [{r['low']:.2f}..{r['high']:.2f}]" for what, r in found.items())
    print(
        f"batch {batch:2} beam {beam}: {seconds}; speed of ours / {name}: {listed}; first call of ours "
        f"{firsts['ours'][1]:.1f} s of CPU; equal answers {equal} of {batch}; load {load()}",
        flush=True,
    )
    first_calls = {side: {"wall": wall, "CPU": cpu} for side, (wall, cpu, _) in firsts.items()}
    return {
        "batch": batch, "beam": beam, "against": name, "seconds": each, "ratios": found, "first": first_calls,
        "equal": equal,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--size",
        default="opus",
        choices=list(SIZES),
        help="tiny, t5-tiny: to try this",
    )
    parser.add_argument("--batches", default="1,16", help="sources that are translated together")
    parser.add_argument("--beams", default="1,4", help="hypotheses for each source")
    parser.add_argument("--cores", type=int, default=1, help="cores that both sides may use, one thread on each")
    parser.add_argument("--rounds", type=int, default=6, help="blocks of calls of each side")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a block, at least two calls")
    parser.add_argument("--json", default="", help="file to write all results to")
    o = parser.parse_args()
    if missing := [name for name in ("torch", "transformers") if not importlib.util.find_spec(name)]:
        parser.error(f"{missing[0]}, which the other side needs, is not installed: pip install 'vit-jax[parity]'")
    if not 1 <= o.cores <= backend.cores():
        parser.error(f"--cores {o.cores}: give 1 to {backend.cores()}")
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: o.cores])  # before jax starts its threads
    backend.configure_jax()
    import torch

    import vit_jax
    from convert.verify.libraries import load as imported

    transformers = imported("transformers")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(o.cores)
    machine = describe()
    print(heading(machine), flush=True)
    goal = next((goal for maker, goal in GOAL.items() if maker in machine["cpu"]), None)
    goal = GOAL_T5 if o.size.startswith("t5") else goal
    print(f"transformers {transformers.__version__}; {o.cores} cores", flush=True)
    print(f"goal: {goal or 'none for this CPU'}; with the cache over without, at batch 16: {GOAL_CACHED:g}", flush=True)
    hf = t5(o.size) if o.size.startswith("t5") else marian(o.size)
    with tempfile.TemporaryDirectory() as folder:
        hf.save_pretrained(folder)
        model = vit_jax.load(folder).model
    batches, beams = ([int(word) for word in words.split(",")] for words in (o.batches, o.beams))
    rows = [compare(hf, model, batch, beam, o) for beam in beams for batch in batches]
    rows.append(compare(hf, model, batches[-1], 1, o, uncached=True))
    if o.json:
        Path(o.json).write_text(
            json.dumps({"machine": machine, "command": " ".join(sys.argv), "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
