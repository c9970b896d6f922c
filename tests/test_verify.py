"""verify: files that are the same pass, every planted fault is caught and its first layer named, and what it leaves behind.

Faults are planted in a file, in its config, and in a layout's table. The last kind no comparison of tensors can see:
what a wrong table writes it reads back. There the other library's own forward pass decides.
"""

import functools
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch cannot be imported, so no other forward pass can be compared")

from convert import adapt, rules
from convert.dialects import LAYOUTS
from convert.layout import Facts
from convert.rules import TRANSPOSE, Order, Row
from convert.verify import Reference, Weights, comparison, libraries, verify
from convert.verify.checks import compared, failed, forward, gradients
from convert.verify.command import images
from convert.verify.sides import Theirs
from convert.verify.weights import noise
from tests.parity.groups import quick_compilation
from tests.parity.libraries import load
from tests.parity.weights import weights
from vit_jax.config import NETWORKS, TransformerConfig, ViTConfig
from vit_jax.errors import UserError

VIT = ViTConfig(image=(6, 4), patch=2, classes=5, width=8, depth=3, heads=2, hidden=12)
TIMM = LAYOUTS["timm"]


@pytest.fixture(autouse=True, scope="module")
def few_optimizations():
    import jax

    quick_compilation()
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def ours(config=VIT):
    return {name: value.astype(np.float32) for name, value in weights(config).items()}


def written(layout, parameters, config=VIT, name="b"):
    """A file of a layout."""
    return Weights(name, layout, config, rules.write(layout.rows(config), parameters))


@functools.cache
def source():
    return written(LAYOUTS["torch-ref@vit"], ours(), name="a")


@functools.cache
def reference():
    return Reference("ours with a", VIT, ours())


# ------------------------------------------------------------------------------------------- faults

Tensors = dict[str, np.ndarray]


@dataclass(frozen=True)
class Fault:
    """What is done to a file of timm's, and where it shows first; "" where only tensors can tell."""

    where: str
    tensors: Callable[[Tensors], Tensors] | None = None
    config: dict[str, Any] | None = None
    rows: Callable[[Row], Row] | None = None


def every(
    part: str, change: Callable[[np.ndarray], np.ndarray], block: int | None = None
) -> Callable[[Tensors], Tensors]:
    """A change of the tensors whose names end so, in all blocks or in one."""
    start = "" if block is None else f"blocks.{block}."
    return lambda t: {n: change(a) if n.endswith(part) and n.startswith(start) else a for n, a in t.items()}


def both(*changes: Callable[[Tensors], Tensors]) -> Callable[[Tensors], Tensors]:
    return lambda t: functools.reduce(lambda t, change: change(t), changes, t)


def qkv(order: str, block: int | None = None) -> Callable[[Tensors], Tensors]:
    """q, k and v in another order."""
    places = ["qkv".index(letter) for letter in order]
    return both(
        *(
            every(f"attn.qkv.{leaf}", lambda a: np.concatenate([np.split(a, 3)[i] for i in places]), block)
            for leaf in ("weight", "bias")
        )
    )


def regrouped(before: str, after: str) -> Callable[[Tensors], Tensors]:
    """The rows of qkv in another arrangement of (part, head, place in the head)."""
    change = lambda a, d="": rules.rearrange(a, before + d, after + d, dict(s=3, h=2, e=4))  # noqa: E731
    return both(every("attn.qkv.weight", lambda a: change(a, " d")), every("attn.qkv.bias", change))


def scaled(by: float) -> Callable[[Tensors], Tensors]:
    """Queries that much larger."""
    return both(
        *(
            every(f"attn.qkv.{leaf}", lambda a: np.concatenate([a[:8] * np.float32(by), a[8:]]))
            for leaf in ("weight", "bias")
        )
    )


def bias(part: slice, block: int | None = None) -> Callable[[Tensors], Tensors]:
    """A part of the qkv bias dropped."""

    def drop(a):
        a = a.copy()
        a[part] = 0
        return a

    return every("attn.qkv.bias", drop, block)


def rotated(block: int | None = None) -> Callable[[Tensors], Tensors]:
    """The value's heads in each other's place."""
    return both(
        *(
            every(f"attn.qkv.{leaf}", lambda a: np.concatenate([a[:16], np.roll(a[16:], 4, 0)]), block)
            for leaf in ("weight", "bias")
        )
    )


def exchanged(a: str, b: str) -> Callable[[Tensors], Tensors]:
    """Two modules in each other's place."""
    other = lambda n: n.replace(a, "\0").replace(b, a).replace("\0", b)  # noqa: E731
    return lambda t: {n: t[other(n)] for n in t}


def rows_of_positions(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Tensors], Tensors]:
    return every("pos_embed", lambda a: change(a[0])[None])


def entry(name: str, by: float) -> Callable[[Tensors], Tensors]:
    def nudge(a):
        a = a.copy()
        a.flat[0] += by
        return a

    return every(name, nudge)


def twice(t: Tensors) -> Tensors:
    return {**t, "cls_token": t["cls_token"] + t["pos_embed"][:, :1]}


def skipped(block: int) -> Callable[[Tensors], Tensors]:
    return both(*(every(part, np.zeros_like, block) for part in ("proj.weight", "proj.bias", "fc2.weight", "fc2.bias")))


def permuted_heads(t: Tensors) -> Tensors:
    """Whole heads in each other's place, everywhere: the same function."""
    swap = lambda a: np.concatenate([np.roll(part, 4, 0) for part in np.split(a, 3)])  # noqa: E731
    return both(
        every("attn.qkv.weight", swap),
        every("attn.qkv.bias", swap),
        every("attn.proj.weight", lambda a: np.roll(a, 4, 1)),
    )(t)


def permuted_units(t: Tensors) -> Tensors:
    """The mlp's units in another order: the same function."""
    roll = lambda axis: lambda a: np.roll(a, 1, axis)  # noqa: E731
    return both(every("fc1.weight", roll(0)), every("fc1.bias", roll(0)), every("fc2.weight", roll(1)))(t)


def through(dtype: Any) -> Callable[[Tensors], Tensors]:
    return lambda t: {n: a.astype(dtype).astype(np.float32) for n, a in t.items()}


def moved(theirs: str, *operations: Any) -> Callable[[Row], Row]:
    """Other operations in the rows of these names."""
    return lambda r: replace(r, operations=operations) if any(n.endswith(theirs) for n in r.theirs) else r


def packed(*order: int, turned: bool = True) -> Callable[[Row], Row]:
    """The rows of qkv with our parts in another order, or not transposed."""

    def change(r: Row) -> Row:
        if "attn.qkv" not in r.theirs[0]:
            return r
        operations = r.operations if turned else tuple(o for o in r.operations if o is not TRANSPOSE)
        return replace(r, ours=tuple(r.ours[i] for i in order), operations=operations)

    return change


def renamed(a: str, b: str) -> Callable[[Row], Row]:
    """Two modules' names exchanged in the table."""
    other = lambda n: n.replace(a, "\0").replace(b, a).replace("\0", b)  # noqa: E731
    return lambda r: replace(r, theirs=tuple(map(other, r.theirs)))


PATCH = dict(c=3, p=2, q=2)
Q, K, V = slice(0, 8), slice(8, 16), slice(16, 24)
FAULTS = {
    # in the file: faults that converters have made
    "qkv rows as (h 3 d)": Fault("blocks.0", regrouped("(s h e)", "(h s e)")),
    "heads as (d h)": Fault("blocks.0", regrouped("(s h e)", "(s e h)")),
    "value heads rotated": Fault("blocks.0", rotated()),
    "value heads of the last block rotated": Fault("blocks.2", rotated(2)),
    "query and key swapped": Fault("blocks.0", qkv("kqv")),
    "key and value swapped, one block": Fault("blocks.1", qkv("qvk", 1)),
    "out projections transposed": Fault("blocks.0", every("attn.proj.weight", lambda a: a.T.copy())),
    "out projection of one block transposed": Fault("blocks.1", every("attn.proj.weight", lambda a: a.T.copy(), 1)),
    "norm1 and norm2 swapped": Fault("blocks.0", exchanged("norm1", "norm2")),
    "scale D^-1/2 for Dh^-1/2": Fault("blocks.0", scaled(0.5**0.5)),
    "query bias dropped": Fault("blocks.0", bias(Q)),
    "key bias dropped": Fault("", bias(K)),
    "value bias dropped, last block": Fault("blocks.2", bias(V, 2)),
    "all qkv biases dropped": Fault("blocks.0", bias(slice(None))),
    "grid transposed": Fault("tokens", rows_of_positions(lambda a: np.concatenate([a[:1], a[1:].reshape(3, 2, 8).swapaxes(0, 1).reshape(6, 8)]))),
    "class position zeroed": Fault("tokens", rows_of_positions(lambda a: np.concatenate([a[:1] * 0, a[1:]]))),
    "class position added twice": Fault("tokens", twice),
    "positions one row late": Fault("tokens", rows_of_positions(lambda a: np.roll(a, 1, 0))),
    "patch height and width swapped": Fault("tokens", every("patch_embed.proj.weight", lambda a: a.swapaxes(2, 3).copy())),
    "colours reversed": Fault("tokens", every("patch_embed.proj.weight", lambda a: a[:, ::-1].copy())),
    "(c p q) read as (p q c)": Fault("tokens", every("patch_embed.proj.weight", lambda a: a.reshape(8, 2, 2, 3).transpose(0, 3, 1, 2).copy())),
    "patch bias dropped": Fault("tokens", every("patch_embed.proj.bias", np.zeros_like)),
    "one block skipped": Fault("blocks.1", skipped(1)),
    "an fc1 bias 1e-3 off": Fault("blocks.1", entry("blocks.1.mlp.fc1.bias", 1e-3)),
    "an fc2 weight one bit off": Fault("blocks.2", entry("blocks.2.mlp.fc2.weight", 3e-7)),
    "through bfloat16": Fault("tokens", through(ml_dtypes.bfloat16)),
    "through float16": Fault("tokens", through(np.float16)),
    "whole heads permuted": Fault("", permuted_heads),
    "units of the mlp permuted": Fault("", permuted_units),
    "not a number": Fault("blocks.0", entry("blocks.0.mlp.fc1.bias", np.nan)),
    "head classes rotated": Fault("logits", both(every("head.weight", lambda a: np.roll(a, 1, 0)), every("head.bias", lambda a: np.roll(a, 1, 0)))),
    # in the config
    "tanh GELU": Fault("blocks.0", config=dict(activation="gelu_tanh")),
    "quick GELU": Fault("blocks.0", config=dict(activation="quick_gelu")),
    "ReLU": Fault("blocks.0", config=dict(activation="relu")),
    "eps 1e-12": Fault("blocks.0", config=dict(eps=1e-12)),
    "eps 1e-5": Fault("blocks.0", config=dict(eps=1e-5)),
    "eps 1e-3": Fault("blocks.0", config=dict(eps=1e-3)),
    "twice the heads": Fault("blocks.0", config=dict(heads=4)),
    "half the heads": Fault("blocks.0", config=dict(heads=1)),
    "last norm skipped": Fault("logits", config=dict(final_norm=False)),
    "mean of all for the class token": Fault("logits", config=dict(pool="mean_all")),
    "mean of patches for the class token": Fault("logits", config=dict(pool="mean")),
    "norm after pooling instead of before": Fault("logits", config=dict(pool="mean", final_norm=False, head_norm=True)),
    # in the table
    "a row with query and key swapped": Fault("blocks.0", rows=packed(1, 0, 2)),
    "a row with key and value swapped": Fault("blocks.0", rows=packed(0, 2, 1)),
    "a row without its transpose": Fault("blocks.0", rows=moved("attn.proj.weight")),
    "a packed row without its transpose": Fault("blocks.0", rows=packed(0, 1, 2, turned=False)),
    "a row of heads as (e h)": Fault("blocks.0", rows=moved("attn.proj.weight", Order("o (e h)", "(h e) o", dict(h=2, e=4)))),
    "a row of patches (q p)": Fault("tokens", rows=moved("patch_embed.proj.weight", Order("d c q p", "(p q c) d", PATCH))),
    "a row of patches (c p q)": Fault("tokens", rows=moved("patch_embed.proj.weight", Order("d c p q", "(c p q) d", PATCH))),
    "rows with norm1 and norm2 exchanged": Fault("blocks.0", rows=renamed("norm1", "norm2")),
    "rows with two blocks exchanged": Fault("blocks.1", rows=renamed("blocks.1.", "blocks.2.")),
}  # fmt: skip


def planted(fault: Fault) -> Weights:
    """timm's file with a fault."""
    if fault.rows:
        layout = replace(TIMM, rows=lambda c: [fault.rows(r) for r in TIMM.rows(c)])
        return written(layout, ours())
    good = written(TIMM, ours())
    if fault.config:
        config = replace(VIT, **fault.config)
        theirs, kept = {n: r.theirs[0] for r in TIMM.rows(config) for n in r.ours}, {}
        for r in TIMM.rows(VIT):  # a norm before pooling may become one after it
            name = next((theirs[n] for n in (r.ours[0], r.ours[0].replace("norm.", "head_norm.")) if n in theirs), None)
            kept |= {name: good.tensors[r.theirs[0]]} if name else {}
        return Weights("b", TIMM, config, kept)
    return replace(good, tensors=fault.tensors(good.tensors))


@pytest.fixture
def timm():
    try:
        load("timm")
    except ImportError:
        pytest.skip("timm is not installed")


@pytest.fixture
def b_alone(monkeypatch):
    """Without A in its own library: it is the same in every one of these tests."""
    monkeypatch.setattr(
        comparison,
        "of_one",
        lambda weights, *more, check=comparison.of_one: check(weights, *more) if weights.name == "b" else [],
    )


def test_the_control_passes(timm):
    report = verify(source(), written(TIMM, ours()), reference=reference())
    assert report.same, failed(report.checks)
    assert report.verdict == "the same function" and not report.notes
    assert any("timm" in c.subject for c in report.checks)


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught_and_its_layer_named(timm, b_alone, name):
    fault = FAULTS[name]
    with np.errstate(all="ignore"):
        report = verify(source(), planted(fault), reference=reference())
    assert not report.same
    forward = [c for c in failed(report.checks) if c.quantity.startswith("forward")]
    if fault.where:
        assert forward and forward[0].where == fault.where == report.where, report.text()
        assert report.verdict == f"different, first at {fault.where}"
    else:  # outputs cannot tell
        assert not forward and "same outputs" in report.verdict, report.text()
    if fault.rows:  # and tensors cannot
        assert all(c.passed for c in report.checks if "tensors" in c.quantity)


@functools.cache
def resized():
    """A of another size, and ours after timm's kernel has resized its positions."""
    a = written(LAYOUTS["torch-ref@vit"], ours(replace(VIT, image=4)), replace(VIT, image=4), "a")
    (one,) = adapt.plan(a.config, ["resize=6x4:timm"])
    return a, Reference("ours with a", one.config, adapt.apply(one, a.parameters))


@pytest.mark.parametrize("kernel", ["hf", "dino", "flexi"])
def test_a_wrong_resize_kernel_is_caught(timm, b_alone, kernel):
    a, expected = resized()
    (wrong,) = adapt.plan(a.config, [f"resize=6x4:{kernel}"])
    report = verify(
        a, written(TIMM, adapt.apply(wrong, a.parameters), wrong.config), ["resize=6x4:timm"], reference=expected
    )
    assert report.where == "tokens" and any(c.where == "position" for c in failed(report.checks))


def test_a_file_that_its_library_does_not_load_is_caught(timm):
    """A name that the table has wrong, both ways."""
    layout = replace(TIMM, rows=lambda c: [renamed("attn.proj", "attn.projection")(r) for r in TIMM.rows(c)])
    report = verify(source(), written(layout, ours()), reference=reference())
    assert not report.same and report.verdict == "not compared: its own library does not load b"
    assert 'Missing key(s) in state_dict: "blocks.0.attn.proj.weight"' in report.where


@pytest.mark.parametrize("name", ["imagenet", "none"])
def test_other_statistics_are_caught(timm, name):
    half, other = (dict(zip(("mean", "std"), adapt.vit.STATISTICS[n], strict=True)) for n in ("half", name))
    a, b = replace(source(), facts=Facts(preprocess=half)), written(TIMM, ours())
    assert verify(a, replace(b, facts=Facts(preprocess=half)), reference=reference()).same
    report = verify(a, replace(b, facts=Facts(preprocess=other)), reference=reference())
    assert not report.same and "statistics" in report.verdict


def test_steps_part_where_a_gradient_does(timm):
    """A library that trains its positions by another gradient: outputs agree, gradients and steps do not."""
    built, _ = libraries.build(written(TIMM, ours()))
    call = built.call

    def other(module, given):
        z = module.pos_embed.sum()
        return call(module, given) + 1e-6 * (z - z.detach())

    checks = list(compared(written(TIMM, ours()), reference(), replace(built, call=other), steps=2))
    assert [(c.quantity, c.where) for c in failed(checks)] == [
        *((f"gradients, float64, of {whose} largest", "position") for whose in ("its tensor's", "the model's")),
        ("parameters after 2 steps, float64", "position"),
    ]


def test_a_defect_of_the_batch_axis_is_named(timm):
    """The notebook that attends across the batch: what an image gives depends on its neighbours."""
    built, _ = libraries.build(written(TIMM, ours()))
    call = built.call
    mixed = replace(built, call=lambda module, given: call(module, given) + 1e-9 * call(module, given).mean(0))
    checks = list(compared(written(TIMM, ours()), reference(), mixed))
    assert [c.where for c in failed(checks)][:2] == ["logits", "a batch of one"]


def passed(weights, mine, dtype, changed=lambda call: call):
    """The forward pass of weights in their library, its call changed, against ours."""
    built, _ = libraries.build(weights)
    theirs = Theirs(replace(built, call=changed(built.call)), weights.config, dtype).capture(mine.inputs)
    return forward("b", "ours", theirs, mine.values(dtype), dtype)


def test_a_float32_pass_that_is_a_little_off_is_caught():
    """By 3e-5 of its outputs, where float32's own rounding stays below 2e-6."""
    assert passed(source(), reference(), "float32").difference < 2e-6
    off = passed(source(), reference(), "float32", lambda call: lambda module, given: call(module, given) * (1 + 3e-5))
    assert not off.passed and off.where == "logits"


def test_a_library_that_attends_to_padding_is_caught():
    config = replace(WORDS, encoder_depth=1, decoder_depth=1)
    theirs, mine = (
        written(LAYOUTS["torch-ref@transformer"], ours(config), config),
        Reference("ours", config, ours(config)),
    )
    assert passed(theirs, mine, "float64").passed
    blind = passed(
        theirs,
        mine,
        "float64",
        lambda call: lambda module, given: call(module, {**given, "source_padding": given["source_padding"] | True}),
    )
    assert not blind.passed and blind.where == "encoder.blocks.0"


def test_sequences_of_noise_are_of_unequal_length_and_say_so():
    given = noise(WORDS)
    assert given["source"].shape == given["source_padding"].shape == (3, 7)
    assert [row.tolist() for row in given["source_padding"]] == [[True] * n + [False] * (7 - n) for n in (7, 6, 5)]


# ------------------------------------------------------------------------------------------ reports


def test_without_torch_tensors_are_compared_and_the_report_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    report = verify(source(), written(TIMM, ours()))
    assert report.same and report.verdict == "the same tensors (forward not compared)"
    assert "forward not compared: PyTorch cannot be imported" in report.text()
    report = verify(source(), planted(FAULTS["key bias dropped"]))
    assert (
        not report.same
        and report.where == "blocks.0.attention.key.bias, blocks.1.attention.key.bias, blocks.2.attention.key.bias"
    )


class Turned:
    """An operation whose two ways are not each other's: it writes the negative of what it reads."""

    def read(self, arrays):
        return arrays

    def write(self, arrays):
        return [-array for array in arrays]


@pytest.mark.parametrize("whose", ["a", "b"])
def test_a_table_that_writes_otherwise_than_it_reads_is_caught(whose, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    layout = replace(TIMM, rows=lambda c: [moved("norm.weight", Turned())(r) for r in TIMM.rows(c)])
    a, b = (replace(written(TIMM, ours(), name=name), layout=layout if name == whose else TIMM) for name in "ab")
    (only,) = failed(verify(a, b).checks)
    assert (only.subject, only.against, only.where) == (whose, "itself", "norm.weight")


def test_of_a_network_without_a_twin_tensors_are_compared_and_the_report_says_so(monkeypatch):
    monkeypatch.setitem(NETWORKS, "vit", replace(NETWORKS["vit"], torch=""))
    mine = LAYOUTS["vit-jax@vit"]
    report = verify(written(mine, ours(), name="a"), written(mine, ours()), dtype=np.dtype(np.float32))
    assert report.same and report.verdict == "the same tensors (forward not compared)"
    assert report.notes.count("forward not compared: torch_ref has no twin of a ViT") == 1
    wrong = ours() | {"head.bias": np.zeros(5, np.float32)}
    report = verify(written(mine, ours(), name="a"), written(mine, wrong))
    assert not report.same and report.where == "head.bias"


def test_networks_of_other_inputs_are_told_apart_without_a_forward_pass():
    other = replace(VIT, image=8)
    report = verify(source(), written(TIMM, ours(other), other))
    assert not report.same and report.where == "image 8 and (6, 4)"
    assert any("inputs differ in image" in note for note in report.notes)


def test_networks_of_other_classes_part_without_a_traceback(timm):
    other = replace(VIT, classes=7)
    report = verify(source(), written(TIMM, ours(other), other))
    assert not report.same and report.where == "logits"
    assert "classes 7 and 5" in report.text()


def test_the_gradient_of_the_padding_row_is_compared():
    """transformers' embeddings leave it out, and where the tables are apart that is all of the row's."""
    try:
        load("transformers")
    except ImportError:
        pytest.skip("transformers is not installed")
    apart = replace(
        IN_LIBRARIES["marian"][1], tie="decoder", target_vocabulary=8, outputs=8, encoder_depth=1, decoder_depth=1
    )
    ours_with_a = Reference(
        "ours", apart, ours(apart), noise(apart) | {"target": np.zeros((3, 5), int)}
    )  # of nothing but padding
    theirs = Theirs(libraries.build(written(LAYOUTS["marian"], ours(apart), apart))[0], apart, "float64")
    checks = list(
        gradients("b", "ours", theirs.gradients(ours_with_a.inputs, ours_with_a.cotangent), ours_with_a.gradients())
    )
    assert not failed(checks), checks


def test_a_report_is_json_markdown_and_a_certificate_that_does_not_change(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    reports = [verify(source(), planted(FAULTS["not a number"])) for _ in range(2)]
    one, two = (json.dumps(r.certificate(), allow_nan=False) for r in reports)
    assert one == two
    certificate = json.loads(one)
    assert list(certificate) == [
        "format",
        "source",
        "target",
        "config",
        "adaptations",
        "differences",
        "versions",
        "verdict",
    ]
    assert (
        certificate["source"] == {"sha256": "", "layout": "torch-ref@vit", "keys": 56}
        and certificate["config"]["fields"]["width"] == 8
    )
    assert certificate["differences"]["target: tensors under our names"] == 1.0
    assert json.loads(json.dumps(reports[0].json()))["checks"][-1]["where"] == "blocks.0.mlp.fc1.bias"
    assert (
        "| b | a | tensors under our names | 1.0e+00 | 0e+00 | blocks.0.mlp.fc1.bias | **no** |"
        in reports[0].markdown()
    )


# -------------------------------------------------------------------------------------------- doors


def files(tmp_path, parameters=None):
    """A state dict of torchvision's, and one of timm's with the same weights, as files."""
    import torch

    config = replace(VIT, image=4, patch=2)
    paths = []
    for name in ("torchvision@2", "timm"):
        tensors = rules.write(LAYOUTS[name].rows(config), parameters if parameters and name == "timm" else ours(config))
        paths.append(tmp_path / f"{name}.pth")
        torch.save({n: torch.from_numpy(a.copy()) for n, a in tensors.items()}, paths[-1])
    return paths


def door(*arguments):
    """`python -m convert ...` in this process: its exit code."""
    from convert.__main__ import main

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["convert", *map(str, arguments)])
        return main()


SAID = ("--set", "heads=2", "--set", "image=4", "--set", "mean=0.5", "--set", "std=0.5")


def test_verify_compares_two_files_and_leaves_what_was_asked_for(timm, tmp_path, capsys):
    a, b = files(tmp_path)
    np.save(tmp_path / "images.npy", np.random.default_rng(0).standard_normal((2, 4, 4, 3)))
    assert (
        door(
            "verify",
            a,
            b,
            *SAID,
            "--json",
            tmp_path / "v.json",
            "--markdown",
            tmp_path / "v.md",
            "--images",
            tmp_path / "images.npy",
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "B does not say its config: it was read by that of A" in out and out.endswith(
        "verdict   the same function\n"
    )
    said = json.loads((tmp_path / "v.json").read_text())
    assert (
        said["verdict"] == "the same function"
        and len(said["source"]["sha256"]) == 64
        and said["target"]["layout"] == "timm"
    )
    assert {"torchvision", "timm"} <= {
        c["subject"].split(" in ")[1].split()[0] for c in said["checks"] if " in " in c["subject"]
    }
    assert f"- B: `{b}`, timm, sha256 {said['target']['sha256']}" in (tmp_path / "v.md").read_text()


def test_verify_exits_with_3_and_names_the_layer(timm, tmp_path, capsys):
    damaged = ours(replace(VIT, image=4, patch=2))
    damaged["blocks.1.mlp.fc2.bias"][3] += 1e-4
    assert door("verify", *files(tmp_path, damaged), *SAID) == 3
    assert capsys.readouterr().out.endswith("verdict   different, first at blocks.1\n")


def test_a_verified_conversion_leaves_a_certificate_and_can_be_verified_again(timm, tmp_path, capsys, monkeypatch):
    (a, _), b = files(tmp_path), tmp_path / "b.safetensors"
    assert (
        door(
            a,
            b,
            "--to",
            "timm",
            *SAID,
            "--adapt",
            "fold=cls_position",
            "--adapt",
            "activation=relu",
            "--dtype",
            "bfloat16",
            "--verify",
        )
        == 0
    )
    (said,) = (line for line in capsys.readouterr().out.splitlines() if "the change moves outputs by" in line)
    assert 0.01 < float(said.split()[-4]) < 1
    certificate = json.loads((tmp_path / "b.safetensors.certificate.json").read_text())
    assert (
        certificate["adaptations"] == ["fold=cls_position", "activation=relu"]
        and certificate["config"]["fields"]["activation"] == "relu"
    )
    assert (
        certificate["differences"]["target: tensors under our names"] == 0
        and certificate["verdict"] == "the same function"
    )
    monkeypatch.setitem(sys.modules, "torch", None)
    assert door("verify", a, b, *SAID) == 0, "what B says of its making is done to A before they are compared"


@pytest.mark.parametrize(
    ("array", "sentence"),
    [
        (None, "there is no such file"),
        (np.zeros((2, 4, 4, 3), np.uint8), "uint8 [2, 4, 4, 3] is not [B, 4, 4, 3] of floating-point numbers"),
        (np.zeros((4, 4, 3)), "float64 [4, 4, 3] is not [B, 4, 4, 3]"),
        (np.zeros((0, 4, 4, 3)), "float64 [0, 4, 4, 3] is not [B, 4, 4, 3]"),
        (np.full((1, 4, 4, 3), np.inf), "holds NaN or infinity"),
    ],
)
def test_images_of_another_shape_are_refused_in_a_sentence(tmp_path, array, sentence):
    if array is not None:
        np.save(tmp_path / "x.npy", array)
    with pytest.raises(UserError, match=re.escape(sentence)):
        images(str(tmp_path / "x.npy"), replace(VIT, image=4), None)


def test_images_that_claim_more_than_their_file_holds_are_refused(tmp_path):
    with open(tmp_path / "x.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f8", "fortran_order": False, "shape": (1 << 36, 4, 4, 3)}
        )
    with pytest.raises(UserError, match="cannot be read"):
        images(str(tmp_path / "x.npy"), replace(VIT, image=4), None)


def test_a_picture_of_too_many_pixels_is_refused_without_a_warning(tmp_path, monkeypatch, recwarn):
    from PIL import Image

    Image.new("RGB", (6, 4)).save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    preprocess = {
        "image": [6, 4],
        "channels": 3,
        "fit": "stretch",
        "size": 4,
        "interpolation": "bicubic",
        "background": 0,
        "mean": [0.5] * 3,
        "std": [0.25] * 3,
    }
    with pytest.raises(UserError, match="24 pixels"):
        images(str(tmp_path / "a.png"), VIT, preprocess)
    assert not recwarn.list


def test_pictures_are_prepared_as_the_file_says(tmp_path):
    from PIL import Image

    preprocess = {
        "image": [6, 4],
        "channels": 3,
        "fit": "stretch",
        "size": 4,
        "interpolation": "bicubic",
        "background": 0,
        "mean": [0.5] * 3,
        "std": [0.25] * 3,
    }
    pixels = np.random.default_rng(0).integers(0, 256, (6, 4, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    given = images(str(tmp_path), VIT, preprocess)["images"]
    assert np.allclose(given, (pixels[None] / 255 - 0.5) / 0.25, rtol=0, atol=1e-12)
    with pytest.raises(UserError, match="says nothing of its preprocessing"):
        images(str(tmp_path), VIT, None)
    with pytest.raises(UserError, match="takes none"):
        images(str(tmp_path), TransformerConfig(), preprocess)


# ------------------------------------------------------------------------------------- every library

NO_BIAS = dict(query_bias=False, key_bias=False, value_bias=False)
STEM = dict(stem_pre_norm=True, stem_norm=True, eps=1e-5, **NO_BIAS)
VECTORS = TransformerConfig(
    width=8,
    heads=2,
    hidden=12,
    encoder_depth=2,
    decoder_depth=2,
    position="none",
    max_length=0,
    eps=1e-5,
    activation="relu",
)
WORDS = replace(
    VECTORS, source_vocabulary=9, target_vocabulary=9, outputs=9, tie="all", max_length=8, activation="gelu"
)
LEARNED = replace(WORDS, position="learned", position_offset=2, embedding_norm=True)
IN_LIBRARIES = {
    "torchvision@1": ("torchvision", replace(VIT, image=4)),
    "torchvision@2": ("torchvision", replace(VIT, image=4, head_hidden=6)),
    "huggingface@v4": (
        "transformers",
        replace(VIT, eps=1e-12, distill_token=True, distill_head=True, pool="cls_distill"),
    ),
    "huggingface@v5": ("transformers", replace(VIT, activation="gelu_tanh", **NO_BIAS)),
    "huggingface@v4, no head": ("transformers", replace(VIT, classes=0)),
    "huggingface@v4, pooler": ("transformers", replace(VIT, classes=0, head_hidden=8)),
    "timm@patch-matrix": ("timm", replace(VIT, distill_token=True, distill_head=True, pool="cls_distill")),
    "timm@gate-apart": ("timm", replace(VIT, gated=True, activation="silu", stem_norm=True)),
    "timm, map": ("timm", replace(VIT, activation="gelu_tanh", cls_token=False, pool="map")),
    "timm": (
        "timm",
        replace(
            VIT,
            registers=2,
            register_position=True,
            layer_scale=0.1,
            qk_norm=True,
            pool="mean",
            final_norm=False,
            head_norm=True,
        ),
    ),
    "vit-pytorch@1.16.1": ("vit_pytorch", replace(VIT, head_width=3, **STEM)),
    "simple-vit@1.4.1": (
        "vit_pytorch",
        replace(VIT, cls_token=False, pool="mean", position="sincos2d", position_trained=False, out_bias=False, **STEM),
    ),
    "torch-transformer": ("torch", VECTORS),
    "torch-transformer@encoder": ("torch", replace(VECTORS, decoder_depth=0)),
    "marian": (
        "transformers",
        replace(WORDS, norm_first=False, final_norm=False, position="concatenated", scale_embedding=True),
    ),
    "bart": ("transformers", replace(LEARNED, norm_first=False, final_norm=False)),
    "mbart": ("transformers", LEARNED),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_LIBRARIES)
def test_every_library_that_builds_networks_agrees(name):
    library, config = IN_LIBRARIES[name]
    try:
        load(library)
    except ImportError:
        pytest.skip(f"{library} is not installed")
    layout = LAYOUTS[name.partition(",")[0]]
    assert not layout.cannot(config)
    a = written(
        LAYOUTS["vit-jax@vit" if isinstance(config, ViTConfig) else "vit-jax@transformer"], ours(config), config, "a"
    )
    report = verify(a, written(layout, ours(config), config), steps=2)
    assert report.same, failed(report.checks)
    assert any(library.replace("_", "") in c.subject.replace("_", "") for c in report.checks)
    assert report.notes == [
        "a: no library is known to build vit-jax@vit; torch_ref stands in, by our reading of the names".replace(
            "vit-jax@vit", a.layout.name
        )
    ]
