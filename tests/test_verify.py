"""verify: equal files pass, every planted fault is caught and its first layer named, nothing unproven is claimed.

Faults are planted in a file, in its config, and in a layout's table. The last kind no comparison of tensors can see:
what a wrong table writes it reads back. There the other library's own forward pass decides.
"""

import functools
import json
import sys
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch cannot be imported, so no other forward pass can be compared")

from convert import adapt, rules
from convert.dialects import LAYOUTS
from convert.layout import Facts
from convert.verify import Reference, Weights, libraries, verify
from convert.verify.checks import Check, beyond_rounding, failures, gradients, statistics
from convert.verify.libraries import library_of
from convert.verify.reference import compare_networks, forward
from convert.verify.sides import ByRows
from convert.verify.weights import noise
from tests.parity.faulty_files import FAULTS, Fault, moved, renamed
from tests.parity.faulty_tables import CLIP, EXAMPLES, KINDS, TableFault, examples
from tests.parity.layouts_notebooks import HEADS
from tests.parity.layouts_seq2seq import MARIAN
from tests.parity.libraries import load
from tests.parity.weights import weights
from vit_jax.models.vit_config import ViTConfig

pytestmark = pytest.mark.usefixtures("quick_compilation")
VIT = ViTConfig(image=(6, 4), patch=2, classes=5, width=8, depth=3, heads=2, hidden=12)
TIMM = LAYOUTS["timm"]


def ours(config=VIT):
    return {name: value.astype(np.float32) for name, value in weights(config).items()}


def written(layout, parameters, config=VIT, name="b"):
    """A file of a layout."""
    return Weights(name, layout, config, rules.write(layout.rows(config), parameters))


@functools.cache
def source():
    return written(LAYOUTS["torch-ref@vit"], ours(), name="a")


class Kept(Reference):
    """Ours, which computes what rounding moves once for all faults."""

    def neighbours(self, dtype):
        kept = vars(self).setdefault("kept", {})
        if dtype not in kept:
            kept[dtype] = [
                Kept(each.name, each.config, each.parameters, each.inputs) for each in super().neighbours(dtype)
            ]
        return kept[dtype]

    def gradients(self, cotangent=None):
        self._gradients = super().gradients(cotangent) if self._gradients is None else self._gradients
        return self._gradients


@functools.cache
def ours_of(config):
    return Kept("ours with a", config, ours(config))


def reference():
    return ours_of(VIT)


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


def available(library):
    """Skip the test where a library is not installed."""
    try:
        load(library.replace("-", "_"))
    except ImportError:
        pytest.skip(f"{library} is not installed")


@pytest.fixture
def timm():
    available("timm")


def test_the_control_passes(timm):
    report = verify(source(), written(TIMM, ours()), reference=reference())
    assert report.same, failures(report.checks)
    assert report.verdict == "the same function" and not report.notes
    assert any("timm" in c.subject for c in report.checks)


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught_and_its_layer_named(timm, name):
    fault = FAULTS[name]
    with np.errstate(all="ignore"):
        report = verify(source(), planted(fault), reference=reference())
    assert not report.same
    forward = [c for c in failures(report.checks) if c.quantity.startswith("forward")]
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
    (one,) = adapt.adaptations(a.config, ["resize=6x4:timm"])
    return a, Kept("ours with a", one.config, adapt.apply(one, a.parameters))


@pytest.mark.parametrize("kernel", ["hf", "dino", "flexi"])
def test_a_wrong_resize_kernel_is_caught(timm, kernel):
    a, expected = resized()
    (wrong,) = adapt.adaptations(a.config, [f"resize=6x4:{kernel}"])
    report = verify(
        a, written(TIMM, adapt.apply(wrong, a.parameters), wrong.config), ["resize=6x4:timm"], reference=expected
    )
    assert report.where == "tokens" and any(c.where == "position" for c in failures(report.checks))


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


@pytest.mark.parametrize("value", [0.1, np.nan])
@pytest.mark.parametrize("name", ["mean", "std"])
def test_the_mean_and_the_std_of_pixels_are_each_compared(name, value):
    stated = {"mean": [0.5] * 3, "std": [0.25] * 3}
    other = {**stated, name: [value, *stated[name][1:]]}
    same, apart = (statistics("b", "a", Facts(preprocess=p), Facts(preprocess=stated)) for p in (stated, other))
    assert same.passed and not apart.passed and apart.where == name


def test_steps_part_where_a_gradient_does(timm):
    """A library that trains its positions by another gradient: outputs agree, gradients and steps do not."""
    built, _ = libraries.build(written(TIMM, ours()))
    call = built.call

    def other(module, **given):
        z = module.pos_embed.sum()
        return call(module, **given) + 1e-6 * (z - z.detach())

    checks = list(compare_networks(written(TIMM, ours()), reference(), replace(built, call=other), steps=2))
    assert [(c.quantity, c.where) for c in failures(checks)] == [
        *((f"gradients, float64, of {whose} largest", "position") for whose in ("its tensor's", "the model's")),
        ("parameters after 2 steps, float64", "position"),
    ]


def test_a_defect_of_the_batch_axis_is_named(timm):
    """The notebook that attends across the batch: what an image gives depends on its neighbours."""
    built, _ = libraries.build(written(TIMM, ours()))
    call = built.call
    mixed = replace(built, call=lambda module, images: call(module, images) + 1e-9 * call(module, images).mean(0))
    checks = list(compare_networks(written(TIMM, ours()), reference(), mixed))
    assert [c.where for c in failures(checks)][:2] == ["logits", "a batch of one"]


def passed(weights, mine, dtype, changed=lambda call: call):
    """The forward pass of weights in their library, its call changed, against ours."""
    built, _ = libraries.build(weights)
    theirs = ByRows(replace(built, call=changed(built.call), capture=None), weights.config, dtype).capture(mine.inputs)
    return forward("b", mine, theirs, dtype)


def test_a_float32_pass_that_is_a_little_off_is_caught():
    """By 3e-5 of its outputs, where float32's own rounding stays below 2e-6."""
    assert passed(source(), reference(), "float32").difference < 2e-6
    off = passed(
        source(), reference(), "float32", lambda call: lambda module, **given: call(module, **given) * (1 + 3e-5)
    )
    assert not off.passed and off.where == "logits"


def test_limits_follow_what_the_last_bits_of_parameters_move_and_no_farther():
    """Of numbers that should be 1: beyond a limit of 1e-12 as many times as the network's own move."""

    def compare(found, limits=(1e-12,)):
        return [Check("it", "ours", "forward", abs(found - 1), limits[0])]

    def passes(found, *own):
        return not failures(beyond_rounding(compare, found, lambda: [1 + each for each in own], "float64"))

    assert passes(1 + 5e-13, np.nan)  # which nobody looks at
    assert passes(1 + 2e-11, 1e-14, 1e-12, 0.0)
    assert not passes(1 + 4e-11, 1e-14, 1e-12, 0.0)
    assert not passes(1 + 2e-9, 1e-3)
    assert not passes(np.inf, 1e-3) and not passes(np.nan, 1e-3)


def test_a_library_that_attends_to_padding_is_caught():
    theirs, mine = sentences("torch-ref@transformer"), Reference("ours", MARIAN, ours(MARIAN))
    assert passed(theirs, mine, "float64").passed

    def blind(call):
        return lambda module, source_padding, **given: call(module, source_padding=source_padding | True, **given)

    assert not passed(theirs, mine, "float64", blind).passed


def test_sequences_of_noise_are_of_unequal_length_and_say_so():
    given = noise(replace(MARIAN, max_length=8))
    assert given["source"].shape == given["source_padding"].shape == (3, 7)
    assert [row.tolist() for row in given["source_padding"]] == [[True] * n + [False] * (7 - n) for n in (7, 6, 5)]


# ----------------------------------------------------------------------------------------- verdicts


def sentences(layout):
    return written(LAYOUTS[layout], ours(MARIAN), MARIAN)


def with_fault(layout, kind):
    """A layout whose table has a fault."""
    plant = next(each.plant for each in KINDS if each.name == kind)
    return replace(LAYOUTS[layout], rows=lambda c: plant(LAYOUTS[layout].rows(c), c))


def against_ours(layout, config):
    """The report on a file of a layout and one of ours with the same parameters."""
    a = written(LAYOUTS["vit-jax@vit"], ours(config), config, "a")
    return verify(a, written(layout, ours(config), config), reference=ours_of(config))


def test_norms_swapped_in_clips_table_are_not_the_same_function(timm):
    good = against_ours(LAYOUTS["clip"], CLIP)
    assert good.verdict == "the same function" and good.computed == {"a", "b"} and not good.notes
    bad = against_ours(with_fault("clip", "norm1 and norm2 exchanged"), CLIP)
    assert all(c.passed for c in bad.checks if "tensors" in c.quantity)
    assert not bad.same and bad.verdict == "different, first at blocks.0"


def test_without_its_library_a_proven_table_is_called_that_and_no_more(monkeypatch):
    """Also where the table is wrong: torch_ref, filled by the very rows in question, is no judge of them."""
    monkeypatch.setitem(sys.modules, "timm", None)
    for layout in (LAYOUTS["clip"], with_fault("clip", "norm1 and norm2 exchanged")):
        report = against_ours(layout, CLIP)
        assert report.same and report.verdict == "the same tensors; the table of clip was compared with timm 1.0.31"
        assert any(c.subject == "b in torch_ref" and c.quantity == "forward, float64" for c in report.checks)
        (note,) = report.notes
        assert note.startswith("b: timm cannot be imported (") and note.endswith("from what our table read")
        assert report.certificate()["notes"] == report.json()["notes"] == [note]


def test_where_nobody_builds_a_network_and_nobody_compared_its_table_it_is_unproven():
    report = against_ours(LAYOUTS["notebook-48"], HEADS)
    assert report.verdict == "the same tensors; the table of notebook-48 is unproven"
    assert report.notes == [
        "b: no library is known to build notebook-48; torch_ref computed it, from what our table read",
    ]
    assert report.computed == {"a"} and "the table of notebook-48 is unproven" in report.text()


def test_two_tables_that_nobody_computed_are_both_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    config = replace(HEADS, final_norm=False, eps=1e-5)
    a, b = (written(LAYOUTS[name], ours(config), config, name) for name in ("timm", "notebook-48"))
    clauses = "the table of timm was compared with timm 1.0.31 and the table of notebook-48 is unproven"
    assert verify(a, b).verdict == f"the same tensors; {clauses}"


def test_a_network_that_its_library_does_not_have_is_not_claimed(timm):
    config = replace(VIT, activation="gelu_tanh", head_hidden=6)
    report = against_ours(LAYOUTS["augreg@pre-linen"], config)
    assert report.verdict == "the same tensors; the table of augreg@pre-linen was compared with timm 1.0.31"
    assert "leaves out the hidden layer of a head" in report.notes[0]


def test_two_files_of_ours_are_compared_by_both_of_our_networks():
    a = written(LAYOUTS["vit-jax@vit"], ours(), name="a")
    report = verify(a, written(LAYOUTS["torch-ref@vit"], ours()), reference=reference())
    assert report.verdict == "the same function" and report.computed == {"a", "b"} and not report.notes
    for layout in ("vit-jax@vit", "torch-ref@vit"):
        wrong = written(with_fault(layout, "query and key exchanged"), ours())
        assert verify(a, wrong, reference=reference()).verdict == "different, first at blocks.0"


def test_of_two_files_of_one_layout_one_is_computed(timm):
    report = verify(written(TIMM, ours(), name="a"), written(TIMM, ours()), reference=reference())
    assert report.verdict == "the same function" and report.computed == {"a", "b"}


def test_without_torch_tensors_are_compared_and_the_report_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    report = verify(source(), written(TIMM, ours()))
    assert report.same and report.verdict == "the same tensors; the table of timm was compared with timm 1.0.31"
    assert "forward not compared: PyTorch cannot be imported" in report.text()
    both = verify(source(), written(LAYOUTS["vit-jax@vit"], ours()))
    assert both.verdict == "the same tensors; no forward pass was compared"
    report = verify(source(), planted(FAULTS["key bias dropped"]))
    assert (
        not report.same
        and report.where == "blocks.0.attention.key.bias, blocks.1.attention.key.bias, blocks.2.attention.key.bias"
    )


FEW = [
    ("timm, gated", "gate and first layer exchanged"),
    ("huggingface@v4", "square out projection transposed"),
    ("augreg@pre-linen", "pixels of a patch in another order"),
    ("vit-pytorch@0.10", "query and key exchanged"),
    ("notebook-256", "norm1 and norm2 exchanged"),
]


@pytest.mark.parametrize(("example", "kind"), FEW)
def test_a_fault_in_a_table_is_caught_by_who_is_independent_of_it(example, kind):
    library = library_of(LAYOUTS[example.partition(",")[0]])
    if library is not None:
        available(library.name)
    fault = TableFault(example, next(each for each in KINDS if each.name == kind))
    assert fault.caught(), fault.name


def test_every_layout_has_a_network_whose_table_is_sabotaged():
    assert {example.partition(",")[0] for example in examples()} == set(LAYOUTS)
    assert all(sum(kind.possible(c) for kind in KINDS) > 1 for c in examples().values())


# ------------------------------------------------------------------------------------------ reports


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
    (only,) = failures(verify(a, b).checks)
    assert (only.subject, only.against, only.where) == (whose, "itself", "norm.weight")


def test_of_a_network_without_a_twin_tensors_are_compared_and_the_report_says_so(monkeypatch):
    monkeypatch.setattr(ViTConfig, "twin", "")
    mine = LAYOUTS["vit-jax@vit"]
    report = verify(written(mine, ours(), name="a"), written(mine, ours()), dtype=np.dtype(np.float32))
    assert report.same and report.verdict == "the same tensors; no forward pass was compared"
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
    report = verify(source(), written(TIMM, ours(other), other), reference=reference())
    assert not report.same and report.where == "logits"
    assert "classes 7 and 5" in report.text()


def test_the_gradient_of_the_padding_row_is_compared():
    """transformers' embeddings leave it out, and where the tables are apart that is all of the row's."""
    available("transformers")
    apart = replace(MARIAN, tie="decoder", source_vocabulary=8, max_length=8)
    padding = noise(apart) | {"target": np.zeros((3, 5), int)}
    mine = Reference("ours", apart, ours(apart), padding)
    theirs = ByRows(libraries.build(written(LAYOUTS["marian"], ours(apart), apart))[0], apart)
    found = theirs.gradients(padding, mine.cotangent)
    assert set(mine.gradients()) - set(found) == {"head.bias"}  # a buffer there
    expected = {name: slope for name, slope in mine.gradients().items() if name in found}
    assert not failures(gradients("b", "ours", found, expected))
    rounded = {name: slope.astype(np.float32) for name, slope in expected.items()}
    alike = {name: slope.astype(np.float64) for name, slope in rounded.items()}
    assert failures(gradients("b", "ours", rounded, alike)), "gradients in float32 are no gradients in float64"


def test_a_report_is_json_markdown_and_a_certificate_that_does_not_change(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    reports = [verify(source(), planted(FAULTS["not a number"])) for _ in range(2)]
    one, two = (json.dumps(r.certificate(), allow_nan=False) for r in reports)
    assert one == two
    certificate = json.loads(one)
    parts = "format source target config adaptations differences versions verdict notes"
    assert list(certificate) == parts.split()
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


# ------------------------------------------------------------------------------------- every library


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES)
def test_every_library_that_builds_networks_agrees(example):
    layout, config = LAYOUTS[example.partition(",")[0]], EXAMPLES[example]
    library = library_of(layout)
    if library is None:
        pytest.skip(f"nobody builds {layout.name}")
    available(library.name)
    assert not layout.cannot(config, weights_only=True)
    mine = next(one for one in LAYOUTS.values() if one.dialect == "vit-jax" and one.network is type(config))
    report = verify(written(mine, ours(config), config, "a"), written(layout, ours(config), config), steps=2)
    assert report.same, failures(report.checks)
    assert report.verdict == "the same function" and not report.notes
    assert any(c.subject.startswith(f"b in {library.name}") for c in report.checks)
