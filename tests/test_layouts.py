"""Every layout's tables: total, recognised by names, solved from shapes.

Between two layouts that share a network, conversion is exact both ways.
"""

import functools
import itertools
import re
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from convert import rules
from convert.commands.formats import pairs
from convert.containers.source import Source, Tensor
from convert.dialects import LAYOUTS
from convert.dialects.other_names import FAMILIES, OTHER_NAMES, canonical
from convert.layout import Facts, Field
from convert.plan.groups import finite, stream
from convert.plan.plan import plan, target_layout
from convert.plan.shared import find_shared, members
from convert.plan.shared import values as values_to_try
from convert.recognise.config import NAMED, STATED, resolve
from convert.recognise.layouts import Recognition, find, which_layout
from convert.recognise.reading import Reading
from tests.random_weights import weights
from tests.test_processes import python
from vit_jax.config.dotted import replace_fields, value_at
from vit_jax.errors import UserError
from vit_jax.models.captioner_config import CaptionerConfig
from vit_jax.models.resnet_config import ResNetConfig
from vit_jax.models.transformer_config import TransformerConfig
from vit_jax.models.vit_config import ViTConfig

slow = pytest.mark.slow
FEW, MORE = 3, 12  # members of a domain that are tried, by default and by the slow tests


@functools.cache
def some(layout, count=FEW):
    return list(itertools.islice(members(LAYOUTS[layout]), count))


def few_or_more(test):
    """A test of so many members of every layout's domain."""
    counts = pytest.mark.parametrize("count", [FEW, pytest.param(MORE, marks=slow)])
    return pytest.mark.parametrize("layout", LAYOUTS)(counts(test))


def random(config, dtype=np.float32, seed=0):
    drawn = weights(config, seed, dtype)
    return {name: abs(array) if name.endswith(".variance") else array for name, array in drawn.items()}


def reading(layout, config, tensors):
    """A reading of tensors at hand."""
    lazy = {
        name: Tensor(name, array.dtype, array.shape, functools.partial(np.copy, array))
        for name, array in tensors.items()
    }
    return Reading(
        Source("memory", "safetensors", dict(lazy)),
        layout,
        config,
        lazy,
        rules.narrow(layout.rows(config), lazy),
        Facts(),
        [],
        {},
    )


def exact(a, b):
    assert a.keys() == b.keys()
    return all(
        x.dtype == b[name].dtype and x.shape == b[name].shape and x.tobytes() == b[name].tobytes()
        for name, x in a.items()
    )


def parameters(arrays):
    """Without what is carried along beside them."""
    return {name: array for name, array in arrays.items() if not name.startswith(rules.CARRIED)}


def fields(config):
    return {name: value_at(config, name) for name in type(config).function_fields()}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_table_speaks_of_every_field_that_decides_the_function(layout):
    assert set(LAYOUTS[layout].fields) == set(LAYOUTS[layout].network.function_fields())


@few_or_more
def test_a_layout_has_a_domain_and_its_rows_make_every_parameter_once(layout, count):
    assert len(some(layout, count)) >= 2
    for config in some(layout, count):
        assert rules.our_shapes(rules.narrow(LAYOUTS[layout].rows(config))) == config.shapes()


NEWER = """
import typing

from vit_jax.config import dotted
from vit_jax.config.dotted import leaves, replace_fields
from vit_jax.models.networks import NETWORKS

for network in NETWORKS.values():
    for name, hint in typing.get_type_hints(network).items():
        if typing.get_origin(hint) is typing.Literal:
            network.__annotations__[name] = typing.Literal[(*typing.get_args(hint), "newer")]
dotted.field_types.cache_clear()
dotted.leaves.cache_clear()

from convert.dialects import LAYOUTS
from convert.dialects.other_names import FAMILIES, OTHER_NAMES, canonical
from convert.plan.shared import members

for layout in LAYOUTS.values():
    config = next(members(layout))
    for name in layout.fields:
        newer = replace_fields(config, {name: "newer"})
        if "newer" in typing.get_args(leaves(layout.network)[name].hint) and newer.normal() != config.normal():
            print(layout.name, name, bool(layout.cannot(newer)), layout.holds_all)
"""


def test_a_value_that_is_newer_than_a_layouts_table_is_refused_by_all_but_our_own_layouts():
    """In a process of its own, whose networks have one more value of each choice before the tables are made."""
    seen = [line.split() for line in python(NEWER).stdout.splitlines()]
    assert {layout for layout, *_ in seen} == LAYOUTS.keys() - {"vit-jax@resnet", "torchvision-resnet"}  # no choices
    assert not [(layout, field) for layout, field, refused, holds_all in seen if refused == holds_all]


def test_a_table_that_leaves_a_choice_open_is_an_error():
    fields = {**LAYOUTS["timm"].fields, "pool": Field(solve=lambda names: "cls")}
    with pytest.raises(ValueError, match=r"^timm: pool is a choice, but its Field lists no values"):
        replace(LAYOUTS["timm"], fields=fields)


@few_or_more
def test_names_are_recognised_and_no_other_layouts_are(layout, count):
    for config in some(layout, count):
        names = rules.file_shapes(rules.narrow(LAYOUTS[layout].rows(config)))
        assert LAYOUTS[layout].recognises(names), config
        others = [
            o.name
            for o in LAYOUTS.values()
            if o.name != layout and not o.refuses("choice", names) and o.recognises(names)
        ]
        if not LAYOUTS[layout].refuses("choice", names):
            assert not others, config
            assert which_layout("file", Recognition.of(names), "", "") is LAYOUTS[layout]


@few_or_more
def test_what_is_solved_from_shapes_is_right_and_nothing_else_is_assumed(layout, count):
    layout = LAYOUTS[layout]
    for i, config in enumerate(some(layout.name, count)):
        names = rules.file_shapes(rules.narrow(layout.rows(config)))
        said = fields(config)
        if i < 2:  # nothing is left to solve
            assert resolve(layout, names, [(STATED, said)], "file").normal() == config.normal()
        unsolved = {
            k: v
            for k, v in said.items()
            if not (f := layout.fields[k]).follow and (f.solve is None or f.solve(names) is None)
        }
        assert resolve(layout, names, [(STATED, unsolved)], "file").normal() == config.normal()


@few_or_more
def test_a_file_comes_back_to_the_bit(layout, count):
    layout = LAYOUTS[layout]
    for config, dtype in zip(some(layout.name, count), itertools.cycle([np.float32, ml_dtypes.bfloat16])):
        ours = random(config, dtype)
        theirs = rules.write(layout.rows(config), ours)
        assert exact(parameters(rules.read(layout.rows(config), theirs)), ours)


TIED = [
    name
    for name, layout in LAYOUTS.items()
    if not layout.holds_all
    and layout.dialect != "flax-t5"  # whose table has one name
    and any(key.rpartition(".")[2] == "tie" and field.among != ("none",) for key, field in layout.fields.items())
]


@pytest.mark.parametrize("name", TIED)
def test_a_tied_table_is_read_under_any_of_its_names_and_from_equal_copies_alone(name):
    layout = LAYOUTS[name]
    configs = itertools.islice(members(layout), 40)
    groups = {r.theirs: c for c in configs for r in layout.rows(c) if r.is_tied and len(r.theirs) > 1}
    assert groups
    for tied, config in groups.items():
        ours = random(config)
        every = rules.write(layout.rows(config), ours, names=tied)
        for there in (c for n in range(1, len(tied) + 1) for c in itertools.combinations(tied, n)):
            file = {key: array for key, array in every.items() if key in there or key not in tied}
            names = {key: array.shape for key, array in file.items()}
            assert layout in Recognition.of(names).layouts
            assert resolve(layout, names, [("its config.json", fields(config))], "file").normal() == config.normal()
            assert exact(parameters(rules.read(layout.rows(config), file)), ours), there
        every[tied[-1]] = every[tied[-1]] + 1
        with pytest.raises(
            UserError, match=rf"^{tied[0]}, {tied[-1]}: copies of one tied tensor differ, .*; remove the .* the file"
        ):
            rules.read(layout.rows(config), every)


@functools.cache
def common(a, b):
    """A config that two layouts can both state, or None; the same in either order."""
    return find_shared(LAYOUTS[a], LAYOUTS[b])[0] if a <= b else common(b, a)


def holds(layout, config):
    """Whether a layout can state a config, by its fields alone."""
    allows = all(field.allows(value_at(config, name)) for name, field in layout.fields.items())
    return allows and not layout.cannot(config)


def page(name):
    return (Path(__file__).parents[1] / name).read_text(encoding="utf-8")


@slow
def test_two_layouts_have_a_common_network_where_one_of_a_few_fits_both():
    """And the guide says of how many."""
    found = pairs()
    assert found.keys() == set(itertools.product(LAYOUTS, repeat=2))
    for (a, b), why in found.items():
        if LAYOUTS[a].network is not LAYOUTS[b].network:
            assert why, (a, b)
        elif why:
            assert not any(holds(LAYOUTS[b], config) for config in some(a)), (a, b)
        else:
            config = common(a, b)
            assert holds(LAYOUTS[a], config) and holds(LAYOUTS[b], config), (a, b)
    for a, own in itertools.product(LAYOUTS, (name for name in LAYOUTS if name.startswith(("vit-jax@", "torch-ref@")))):
        assert bool(found[a, own]) == (LAYOUTS[a].network is not LAYOUTS[own].network), "ours hold any network"
    numbers = re.findall(r"([\d,]+) ordered pairs, of ([\d,]+),", page("docs/guide.md"))
    counted = (f"{sum(not why for why in found.values()):,}", f"{len(found):,}")
    assert numbers == [counted], "correct the ordered pairs in docs/guide.md"


def test_the_number_of_layouts_in_the_readme_is_that_of_the_tables():
    assert {*re.findall(r"(\d+) layouts", page("README.md"))} == {str(len(LAYOUTS))}


NETWORKS = [ViTConfig, TransformerConfig, CaptionerConfig, ResNetConfig]


@pytest.mark.parametrize(
    ("network", "nearest"),
    [*((network, 2) for network in NETWORKS), *(pytest.param(n, 99, marks=slow) for n in NETWORKS)],
)
def test_ordered_pairs_of_layouts_that_share_a_network_carry_it_there_and_back_to_the_bit(network, nearest):
    """Both orders at once: what comes of a's file is the file that b itself would have written, and the other way.

    Each layout with so many of those that follow it in the table, and, slow, with all.
    """
    layouts = [layout for layout in LAYOUTS.values() if layout.network is network]
    done = 0
    for a, b in ((a, b) for i, a in enumerate(layouts) for b in layouts[i : i + nearest]):
        config = common(a.name, b.name)
        if config is None:
            continue
        ours = random(config, seed=done)
        in_a, in_b = (rules.write(layout.rows(config), ours) for layout in (a, b))
        there = parameters(dict(stream(plan(reading(a, config, in_a), b.name))))
        assert set(there) == set(rules.file_shapes(rules.narrow(b.rows(config)))) and exact(there, in_b), (
            a.name,
            b.name,
        )
        back = parameters(dict(stream(plan(reading(b, config, there), a.name))))
        assert exact(back, in_a), (b.name, a.name)
        done += 1
    assert done >= len(layouts)


def test_set_corrects_model_and_nothing_that_a_file_says():
    layout = LAYOUTS["timm"]
    config = some("timm")[0]
    names = rules.file_shapes(rules.narrow(layout.rows(config)))
    said = fields(config)
    assert resolve(layout, names, [(STATED, {"eps": 1e-3}), (f"{NAMED} vit`", said)], "file").eps == 1e-3
    with pytest.raises(UserError, match=r"eps is 0.001 by `fields` but 1e-06 by its config.json"):
        resolve(layout, names, [(STATED, {"eps": 1e-3}), ("its config.json", said)], "file")
    with pytest.raises(UserError, match=r"heads is 2 by its config.json but 1 by `model vit"):
        resolve(layout, names, [("its config.json", said), (f"{NAMED} vit`", {"heads": 1})], "file")
    assert (
        resolve(
            layout, names, [("its config.json", {"eps": 1e-6}), ("this run's config", said | {"eps": 1e-5})], "file"
        ).eps
        == 1e-6
    )


def test_a_run_is_asked_only_for_what_nobody_else_says():
    """Its network may be another than the file's: the file's shapes and layout, and a model's name, go before it."""
    layout, config = LAYOUTS["timm"], some("timm")[0]
    names = rules.file_shapes(rules.narrow(layout.rows(config)))
    run = fields(config) | {
        "width": config.width * 2,
        "hidden": config.hidden + 1,
        "depth": config.depth + 1,
        "classes": 7,
        "stem_activation": "relu",
        "eps": 1e-5,
    }
    said = [("this run's config", run), (f"{NAMED} vit`", {"eps": 1e-6})]
    assert resolve(layout, names, said, "file").normal() == config.normal()
    assert resolve(layout, names, said[:1], "file").normal() == replace(config.normal(), eps=1e-5)


@pytest.mark.parametrize(
    ("name", "unseen"), [("augreg@linen", {"activation": "gelu"}), ("torchvision@2", {"eps": 1e-5})]
)
def test_of_bare_tensors_our_own_words_go_before_the_layout_s_code(name, unseen):
    """They were written with --weights-only, of a network that the layout cannot state."""
    layout, config = LAYOUTS[name], some(name)[0]
    names = rules.file_shapes(rules.narrow(layout.rows(config)))
    (field, value), own = next(iter(unseen.items())), ("its own metadata", fields(config) | unseen)
    for said in ([own], [(STATED, unseen), own]):
        assert getattr(resolve(layout, names, said, "file"), field) == value
    other = getattr(config, field)
    with pytest.raises(
        UserError, match=f"{field} is {other!r} by `fields` but {value!r} by its own metadata; correct `fields"
    ):
        resolve(layout, names, [(STATED, {field: other}), own], "file")
    with pytest.raises(UserError, match="final_norm is False by its own metadata but True by its layout"):
        resolve(layout, names, [("its own metadata", fields(config) | {"final_norm": False})], "file")


@pytest.mark.parametrize("most", [1, pytest.param(99, marks=slow)])
@pytest.mark.parametrize("name", {layout.dialect: name for name, layout in LAYOUTS.items()}.values())
def test_what_a_layout_assumes_may_be_stated_otherwise_where_no_tensor_shows_it(name, most):
    """Each field by so many other values."""
    layout, config = LAYOUTS[name], some(name)[0]
    names, every = rules.file_shapes(rules.narrow(layout.rows(config))), rules.file_shapes(layout.rows(config))
    others, refused = fields(config), 0
    for field in (field for field, one in layout.fields.items() if len(one.among) == 1):
        tried = (v for v in values_to_try(layout.network, field) if not layout.fields[field].allows(v))
        for value in itertools.islice(tried, most):
            stated = [(STATED, {field: value}), ("its config.json", {**others, field: None})]
            other = replace_fields(config, {field: value})
            if other.shapes() != config.shapes():
                refused += 1
                if refused == 1:
                    with pytest.raises(
                        UserError, match=f"{field} is .* by `fields` but .* by its layout; correct `fields"
                    ):
                        resolve(layout, names, stated, "file")
                continue
            try:
                other.check()
                found = resolve(layout, names, stated, "file")
            except UserError:
                continue  # no network, or one that the layout refuses for another reason
            assert found.normal() == other.normal()
            assert bool(layout.departures(found)) == (other.normal() != config.normal())
            assert rules.file_shapes(layout.rows(found)) == every


def test_the_layout_s_own_code_goes_before_a_model_s_name():
    """timm runs Google's weights with another GELU than Google: the file is Google's."""
    layout = LAYOUTS["augreg@linen"]
    config = some("augreg@linen")[0]
    names = rules.file_shapes(rules.narrow(layout.rows(config)))
    assert (
        resolve(layout, names, [(f"{NAMED} vit`", fields(config) | {"activation": "gelu"})], "file").activation
        == "gelu_tanh"
    )
    with pytest.raises(UserError, match=r"width is 12 by its shapes but 16 by `model vit`; correct `model vit`$"):
        resolve(layout, names, [(f"{NAMED} vit`", fields(config) | {"width": 16})], "file")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "V2"])
def test_nan_and_infinity_are_found_in_every_dtype_and_large_numbers_are_not_taken_for_them(dtype):
    kind = np.dtype(ml_dtypes.bfloat16 if dtype in ("bfloat16", "V2") else dtype)
    large = float(ml_dtypes.finfo(kind).max)
    for values, expected in (([0, large, -large], True), ([1, np.nan], False), ([-np.inf, 1], False), ([], True)):
        array = np.array(values, kind)
        assert finite(array.view("V2") if dtype == "V2" else array) is expected, values


def test_what_people_call_a_layout_is_one_of_ours():
    """Every library that README and guide name, whatever its case and hyphens; no name is that of two layouts."""
    names = [name for others in OTHER_NAMES.values() for name in others]
    dialects = {layout.dialect for layout in LAYOUTS.values()}
    assert len(names) == len({*names}) and not dialects & {*names}
    assert {*OTHER_NAMES} | {*FAMILIES} | {each for family in FAMILIES.values() for each in family} <= dialects
    for name in names:
        assert canonical(name) in OTHER_NAMES, name
    for name, dialect in {
        "timm": "timm", "Hugging Face": "huggingface", "hf": "huggingface", "HF_DINOv2": "huggingface-dinov2",
        "torch.nn.Transformer": "torch-transformer", "Meta's DINOv2": "dinov2", "DINOv3": "dinov3", "mBART": "mbart",
        "ours": "vit-jax", "vit_jax": "vit-jax", "torchvision": "torchvision", "EVA-02": "timm-eva",
    }.items():  # fmt: skip
        assert find(name, "to")[-1].dialect == dialect, name
    with pytest.raises(UserError, match=r"^to npz: is a kind of file and no layout; give DST the suffix \.npz"):
        find("npz", "to")


def test_a_library_with_several_layouts_stands_for_the_one_that_holds_a_network():
    """The layout of that very name goes first, and what no layout of it holds is told of all."""
    for name, dialect in (("timm", "timm-eva"), ("hf", "huggingface-dinov2"), ("google", "big-vision"), ("hf", "bart")):
        layout = [each for each in LAYOUTS.values() if each.dialect == dialect][-1]
        assert find(name, "from")[-1].dialect != dialect
        theirs = next(config for config in members(layout) if find(name, "to")[-1].cannot(config))
        assert target_layout(name, theirs).dialect == dialect
    plain = next(config for config in some("timm") if not LAYOUTS["timm-eva"].cannot(config))
    assert target_layout("timm", plain) is LAYOUTS["timm"]
    with pytest.raises(UserError, match=r"^to hf: none of its layouts of a Transformer .* `to marian`, `to bart`, "):
        target_layout("hf", some("torch-transformer")[0])
