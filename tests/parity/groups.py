"""The whole suite, in parts that can run apart; and how a process is set up for it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any

from convert.verify.checks import Check

PARTS = 4  # of the options of each network
SHARES = 4  # of the faults in code
FAULTS = (*(f"faults {i + 1}/{SHARES}" for i in range(SHARES)), "faults in tables")


def quick_compilation() -> None:
    """These nets run for microseconds and would be compiled for minutes: keep what is compiled, and optimise little.

    To be called before jax computes anything.
    """
    import jax

    from vit_jax.machine.backend import cache_folder

    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update("jax_compilation_cache_dir", str(cache_folder().with_name("tests")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.config.update("jax_disable_most_optimizations", True)


def presets() -> Iterator[Check]:
    """Every preset, shrunk."""
    from . import cases, twins

    for case in cases.presets():
        yield from twins.case(case, thorough=True)


def combinations() -> Iterator[Check]:
    """Slots that meet, one compiled pass a family, and decoding with a cache."""
    from . import cases, twins

    for case in cases.combinations():
        yield from twins.case(case, thorough=True)
    yield from twins.jitted("ViT, jitted", cases.VIT)
    yield from twins.jitted("Transformer, jitted", cases.TRANSFORMER)
    yield from twins.jitted("Captioner, jitted", cases.CAPTIONER)
    for case in cases.combinations():
        text = getattr(case.config, "text", case.config)
        if isinstance(text, cases.TransformerConfig) and text.target_vocabulary:
            yield from twins.decoding(f"{case.name}, decoding", case.config)


def options(network: str, part: int) -> Iterator[Check]:
    """A part of the values of all options of one network."""
    from . import cases, twins

    for case in cases.options(cases.VIT if network == "ViT" else cases.TRANSFORMER)[part::PARTS]:
        yield from twins.case(case)


def groups() -> dict[str, Callable[[], Iterable[Check]]]:
    """Every part by name, the long ones first."""
    from functools import partial

    from . import (
        dropping,
        layouts_adapt,
        layouts_captions,
        layouts_encoders,
        layouts_flax,
        layouts_huggingface,
        layouts_huggingface_flax,
        layouts_notebooks,
        layouts_npz,
        layouts_seq2seq,
        layouts_timm,
        layouts_vit_pytorch,
        libraries,
        losses,
        sabotage,
        searches,
        slopes,
        torch_nn,
        training,
    )

    return {
        "torch.nn.Transformer": torch_nn.transformers,
        "libraries": libraries.libraries,
        "encoder-decoder layouts": layouts_seq2seq.layouts,
        "encoder-decoder layouts, Flax": layouts_flax.flax,
        **{
            f"{network} options {i + 1}/{PARTS}": partial(options, network, i)
            for network in ("ViT", "Transformer")
            for i in range(PARTS)
        },
        "combinations": combinations,
        "layouts of timm and torchvision": layouts_timm.layouts,
        "vit-pytorch layouts": layouts_vit_pytorch.layouts,
        "notebooks' layouts": layouts_notebooks.layouts,
        "torch.nn layers": torch_nn.layers,
        "training": training.training,
        "slopes": slopes.slopes,
        "presets": presets,
        "torch.nn.MultiheadAttention": torch_nn.attentions,
        "torch.nn.LayerNorm": torch_nn.norms,
        "losses": losses.losses,
        "layouts of Hugging Face": layouts_huggingface.layouts,
        "layouts of Hugging Face's encoders": layouts_encoders.layouts,
        "layouts of captioners": layouts_captions.layouts,
        "layouts of Google": layouts_npz.layouts,
        "layout of Hugging Face, Flax": layouts_huggingface_flax.layouts,
        "adaptations": layouts_adapt.layouts_adapt,
        "dropout": dropping.dropping,
        "search": searches.twins,
        "search, transformers": searches.transformers,
        "sabotage, control": sabotage.controls,
    }


def in_code(share: int) -> Iterator[dict[str, Any]]:
    """What becomes of every SHARES-th fault in the code."""
    from .sabotage import faults

    for fault in faults()[share::SHARES]:
        found = fault.caught()
        yield {"fault": fault.name, "test": fault.test, "caught": found is not None, "seen": str(found or "")}


def in_tables() -> Iterator[dict[str, Any]]:
    """What becomes of every fault in a layout's table; `layout` is the layout, or one of several networks of it."""
    from .faulty_tables import faults
    from .libraries import absent

    for fault in faults(absent()):
        found, by = fault.caught(), fault.library()
        about = {"layout": fault.example, "fault": fault.kind.name, "test": by}
        yield about | {"caught": found is not None, "seen": str(found or "")}


def set_up() -> None:
    """What a process of its own needs first."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    quick_compilation()


def run(part: str) -> tuple[str, float, list[dict[str, Any]]]:
    """One part: (its name, seconds, its comparisons or its faults)."""
    began = time.monotonic()
    if part in FAULTS:
        found = list(in_tables() if part == FAULTS[-1] else in_code(FAULTS.index(part)))
        return part, time.monotonic() - began, found
    rows = [asdict(r) | {"passed": r.passed, "part": part} for r in groups()[part]()]
    return part, time.monotonic() - began, rows
