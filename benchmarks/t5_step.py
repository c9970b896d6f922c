"""The training step of a network of T5's kind: ours, and T5ForConditionalGeneration of transformers in PyTorch.

Both start from the same weights and take the same padded pairs, again and again: sources of up to LENGTH tokens, and
targets that with their end have as many, of lengths drawn from half of that on. Both do AdamW without decay at a
constant rate, in float32, without dropout and clipping. PyTorch keeps no cache of keys and values.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from benchmarks.torch_step import training_step
from vit_jax.config.groups import trainable_table
from vit_jax.config.run import OptimConfig, RunConfig
from vit_jax.config.trees import flatten
from vit_jax.data.texts.config import SentenceData
from vit_jax.machine import backend
from vit_jax.machine.division import plan_division
from vit_jax.models.transformer_config import TransformerConfig
from vit_jax.presets.table import preset
from vit_jax.text.tokenizer import Ids

LENGTH = 64  # tokens of a source, and of a target with its end
IDS = Ids(pad=0, begin=0, end=1)
# {name: (pairs of a batch, ids, fields besides those of t5-small)}.
NETS: dict[str, tuple[int, int, dict[str, int]]] = {
    "t5-small": (8, 32128, {}),
    "t5-tiny": (4, 128, dict(width=32, heads=2, hidden=48, encoder_depth=2, decoder_depth=1)),
}


def config(net: str) -> RunConfig:
    """The run of one of NETS: that of the preset denoise, without schedule and clipping, on pairs of one length."""
    (batch, ids, fields), run = NETS[net], preset("denoise").run
    assert isinstance(run.model, TransformerConfig)
    model = replace(run.model, source_vocabulary=ids, target_vocabulary=ids, outputs=ids, **fields)
    pairs = SentenceData(lengths=(LENGTH,), tokens=batch * LENGTH)
    optim = OptimConfig(lr=1e-4, weight_decay=0.0, schedule="constant")
    return replace(run, model=model, data=pairs, batch=batch, optim=optim)


def data(model: TransformerConfig, batch: int) -> dict[str, Any]:
    """A batch of random pairs: source int32 [B, LENGTH] and target int32 [B, LENGTH - 1], padded."""
    import numpy as np

    rng = np.random.default_rng(0)

    def side(longest: int) -> Any:
        ids = rng.integers(2, model.outputs, (batch, longest), dtype=np.int32)
        lengths = rng.integers(longest // 2, longest + 1, (batch, 1))
        return np.where(np.arange(longest) < lengths, ids, np.int32(IDS.pad))

    return {"source": side(LENGTH), "target": side(LENGTH - 1)}


def engine_of(run: RunConfig) -> Any:
    """The Engine of a run, as `vit_jax.train` sets it up, without its data and tokenizer."""
    backend.configure_jax(plan_division(run).devices)
    from vit_jax.models.build import definition
    from vit_jax.tasks.translate.learn import Translate
    from vit_jax.training.engine.engine import Engine
    from vit_jax.training.engine.optim import Optimizer

    side: Any = SimpleNamespace(ids=IDS)
    define = partial(definition, run.model, run.compute_dtype, run.parameter_dtype)
    optimizer = Optimizer(run.optim, 1000, 1000, trainable_table(run))
    return Engine(run, define, Translate(0.0, LENGTH, side, side), optimizer)


def torch_step(run: RunConfig, weights: Any, batch: dict[str, Any], compiled: bool) -> Callable[[], Any]:
    """A function that does a step of T5ForConditionalGeneration, eager or compiled, and returns the loss."""
    sys.modules["torchvision"] = None  # type: ignore[assignment]  # one that does not fit torch hinders loading
    import numpy as np
    import torch
    import transformers

    from convert import rules
    from convert.dialects import LAYOUTS

    c = run.model
    assert isinstance(c, TransformerConfig)
    config = transformers.T5Config(
        vocab_size=c.outputs, d_model=c.width, d_kv=c.resolved_head_width, d_ff=c.hidden, num_heads=c.heads,
        num_layers=c.encoder_depth, num_decoder_layers=c.decoder_depth, decoder_start_token_id=IDS.begin,
        pad_token_id=IDS.pad, dropout_rate=0.0, use_cache=False,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config).train()
    tensors = rules.write(LAYOUTS["t5"].rows(c), {name: np.asarray(x) for name, x in flatten(weights).items()})
    model.load_state_dict({name: torch.from_numpy(x.copy()) for name, x in tensors.items()}, strict=False)
    o = run.optim
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=o.lr, betas=(o.beta1, o.beta2), eps=o.eps, weight_decay=o.weight_decay
    )
    source, labels = torch.from_numpy(batch["source"]).long(), torch.from_numpy(ended(batch["target"])).long()

    def loss(source: Any, labels: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=run.compute_dtype == "bfloat16"):
            return model(input_ids=source, attention_mask=(source != IDS.pad).long(), labels=labels).loss

    return training_step(loss, (source, labels), optimizer, compiled)


def ended(target: Any) -> Any:
    """The labels of padded targets: each with its end, and -100, which transformers leaves out, where it is padding."""
    import numpy as np

    count, rows = (target != IDS.pad).sum(1), np.arange(len(target))
    labels = np.pad(np.where(target == IDS.pad, -100, target), ((0, 0), (0, 1)), constant_values=-100)
    labels[rows, count] = IDS.end
    return labels
