"""Whatever wraps the weights of a training checkpoint comes off, and what lies beside them is named."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from convert.containers.source import Marker, Source, Tensor
from convert.recognise.weights_in import choose, elsewhere, hint, tied_names
from vit_jax.errors import UserError

NAMES = ("patch.weight", "blocks.0.norm.weight", "head.weight")


def tensor() -> Tensor:
    return Tensor("w", np.dtype(np.float32), (1,), lambda: np.zeros(1, np.float32))


def state(prefix: str = "", separator: str = ".") -> dict:
    """The state dict of the one layout that is known, with a prefix."""
    return {prefix + name.replace(".", separator): tensor() for name in NAMES}


def known(tensors: dict) -> bool:
    return {"patch.weight", "patch/weight"} & tensors.keys() != set()


def chosen(tree: dict, key: str = "", container: str = "torch") -> tuple[str, set, list[str]]:
    label, tensors, left_out, _ = choose(Source("run.pt", container, tree), known, key)
    return label, set(tensors), left_out


def test_plain_weights_stay_as_they_are():
    assert chosen(state()) == (".", set(NAMES), [])


@pytest.mark.parametrize(
    "wrapper",
    [
        "state_dict",
        "model",
        "model_state_dict",
        "model_ema",
        "state_dict_ema",
        "ema",
        "module",
        "net",
        "student",
        "teacher",
        "params",
    ],
)
def test_each_wrapper_comes_off(wrapper):
    assert chosen({wrapper: state(), "epoch": 3}) == (wrapper, set(NAMES), [])


@pytest.mark.parametrize(
    "prefix", ["module.", "_orig_mod.", "model.", "backbone.", "visual.trunk.", "student.", "teacher."]
)
def test_each_prefix_comes_off(prefix):
    assert chosen({"state_dict": state(prefix)})[1] == set(NAMES)


@pytest.mark.parametrize("order", list(itertools.permutations(["module.", "_orig_mod.", "model.", "backbone."])))
def test_prefixes_come_off_in_any_order(order):
    assert chosen({"model": {"state_dict": state("".join(order))}})[1] == set(NAMES)


@pytest.mark.parametrize("order", list(itertools.permutations(["model", "module", "state_dict"])))
def test_wrappers_come_off_in_any_order_three_deep(order):
    tree = state("module.")
    for wrapper in order:
        tree = {wrapper: tree, "step": 1}
    assert chosen(tree)[:2] == (".".join([*reversed(order), "module"]), set(NAMES))


def test_parts_that_wrappers_of_submodules_add_come_off_within_names():
    tree = {
        "module.patch._orig_mod.weight": tensor(),
        "module.blocks.0._checkpoint_wrapped_module.norm.weight": tensor(),
        "module.head.weight": tensor(),
    }
    assert chosen(tree) == ("module", set(NAMES), [])


@pytest.mark.parametrize("wrapper", ["", "backbone."])
@pytest.mark.parametrize(
    ("blocks", "joined"),
    [
        (["0.0", "0.1", "1.2", "1.3"], ["0", "1", "2", "3"]),  # DINOv2: I counts over all chunks
        (["0.0", "0.1", "1.0", "1.1"], ["0", "1", "2", "3"]),
        ([f"{i // 6}.{i}" for i in range(12)], [f"{i}" for i in range(12)]),
        (["0.0", "1.3"], ["0.0", "1.3"]),  # some are missing
        (["1.2", "1.3"], ["1.2", "1.3"]),
    ],
)
def test_blocks_in_chunks_are_joined_in_their_order(wrapper, blocks, joined):
    tree = {f"{wrapper}patch_embed.proj.weight": tensor(), f"{wrapper}patch.weight": tensor()}
    tree |= {f"{wrapper}blocks.{block}.norm1.weight": tensor() for block in blocks}
    found = choose(Source("run.pt", "torch", {"teacher": tree}), known).tensors
    order = {name: found[f"blocks.{new}.norm1.weight"] for name, new in zip(blocks, joined, strict=True)}
    assert all(order[name] is tree[f"{wrapper}blocks.{name}.norm1.weight"] for name in blocks)


def test_prefixes_are_whole_and_stand_in_front():
    tree = {**state(), "submodule.x": tensor(), "my_model.y": tensor(), "head.module.z": tensor()}
    assert chosen(tree)[1] == {*NAMES, "submodule.x", "my_model.y", "head.module.z"}
    assert chosen({f"mymodule.{name}": tensor() for name in NAMES})[1] == {f"mymodule.{name}" for name in NAMES}


def test_what_lies_beside_the_weights_is_named():
    optimizer = {
        "state": {i: {"exp_avg": tensor(), "exp_avg_sq": tensor()} for i in range(3)},
        "param_groups": [{"lr": 0.1, "params": [0, 1, 2]}],
    }
    lightning = {
        "state_dict": {**state("model."), "loss.center": tensor()},
        "optimizer_states": [optimizer],
        "optimizer": optimizer,
    }
    lightning |= {"epoch": 3, "args": Marker("argparse.Namespace")}
    assert chosen(lightning) == (
        "state_dict.model",
        set(NAMES),
        ["state_dict.loss (1 tensor)", "optimizer_states (6 tensors)", "optimizer (6 tensors)"],
    )


@pytest.mark.parametrize(
    ("container", "tree", "label"),
    [
        (
            "msgpack",
            {
                "params": {"img": {"patch": {"weight": tensor()}}, "txt": {"a": tensor(), "b": tensor()}},
                "opt": {"mu": tensor()},
            },
            "params/img",
        ),
        (
            "npz",
            {
                "params/img/patch/weight": tensor(),
                "params/txt/a": tensor(),
                "params/txt/b": tensor(),
                "opt/mu": tensor(),
            },
            "params/img",
        ),
        ("npz", {"opt/target/patch/weight": tensor(), "opt/state/step": tensor()}, "opt/target"),
        ("msgpack", {"opt": {"target": {"patch": {"weight": tensor()}}}}, "opt/target"),
        (
            "msgpack",
            {"target": {"params": {"patch": {"weight": tensor()}}}, "state": {"step": tensor()}},
            "target/params",
        ),
        ("orbax", {"patch.weight": tensor()}, "."),
        ("safetensors", {"module.model.patch.weight": tensor()}, "module.model"),
    ],
)
def test_names_of_every_container(container, tree, label):
    found = chosen(tree, container=container)
    assert found[:2] == (label, {"patch.weight" if container in ("safetensors", "orbax") else "patch/weight"})
    if label == "params/img":
        assert found[2] == ["params/txt (2 tensors)", "opt (1 tensor)"]


@pytest.mark.parametrize(
    ("tree", "labels"),
    [
        ({"student": state(), "teacher": state("backbone.")}, "student, teacher.backbone"),
        ({**state("student."), **state("teacher.")}, "student, teacher"),
        ({"model": state(), "model_ema": state()}, "model, model_ema"),
        (
            {"state_dict": state("module."), "state_dict_ema": state("module.")},
            "state_dict.module, state_dict_ema.module",
        ),
        ({**state(), "ema": state()}, "., ema"),
        ({"state_dict": state(), "ema_weights": state()}, "state_dict, ema_weights"),
        ({"model": state("module."), "averaged": {"n": tensor(), **state("module.")}}, "model.module, averaged.module"),
        ({"state_dict": {**state("model."), **state("ema_model.")}}, "state_dict.model, state_dict.ema_model"),
        ({"state_dict": {**state("net."), **state("copy.")}, "swa": state()}, "state_dict.net, state_dict.copy, swa"),
    ],
)
def test_where_several_sets_are_known_a_choice_is_asked_for(tree, labels):
    with pytest.raises(UserError, match=f"several sets of weights: {labels}; choose one with `key"):
        chosen(tree)
    for label in labels.split(", "):
        assert chosen(tree, label)[:2] == (label, set(NAMES))


def test_a_second_set_may_hold_more_than_the_first():
    with pytest.raises(UserError, match="several sets of weights: model, larger; choose"):
        chosen({"model": state(), "larger": {**state(), "blocks.1.norm.weight": tensor()}})
    assert (
        "blocks.1.norm.weight"
        in chosen({"model": state(), "larger": {**state(), "blocks.1.norm.weight": tensor()}}, "larger")[1]
    )


@pytest.mark.parametrize(
    "moments",
    [
        "opt",
        "opt_state",
        "optimizer",
        "optimizer_state_dict",
        "mu",
        "nu",
        "trace",
        "exp_avg",
        "exp_avg_sq",
        "momentum_buffer",
    ],
)
def test_moments_have_the_names_of_weights_and_are_none(moments):
    tree = {"params": {"patch": {"weight": tensor()}}, moments: {"0": {"params": {"patch": {"weight": tensor()}}}}}
    assert chosen(tree, container="msgpack")[:2] == ("params", {"patch/weight"})


def test_what_has_other_names_or_shapes_is_no_second_set():
    other = Tensor("w", np.dtype(np.float32), (2,), lambda: np.zeros(2, np.float32))
    assert chosen({"model": state(), "average": {**state(), "head.weight": other}})[0] == "model"
    assert chosen({"model": state(), "average": {name: tensor() for name in NAMES[:2]}})[0] == "model"


def test_a_key_may_name_the_outer_wrapper():
    tree = {"state_dict": state("module."), "state_dict_ema": state("module.")}
    assert chosen(tree, "state_dict_ema")[:2] == ("state_dict_ema.module", set(NAMES))
    with pytest.raises(
        UserError, match=r"run\.pt: key ema names no set of weights; there is state_dict.module, state_dict_ema.module"
    ):
        chosen(tree, "ema")


@pytest.mark.parametrize(
    ("tree", "key"),
    [
        ({"a": {"state_dict": state()}}, "a.state_dict"),
        ({"a": {"b": {"c": state("module.")}}, "epoch": tensor()}, "a.b.c.module"),
        ({"state_dict": {**state("vit."), "loss.center": tensor()}}, "state_dict.vit"),
        ({"state_dict": state("model.vit.")}, "state_dict.model.vit"),
        (state("encoder."), "encoder"),
    ],
)
def test_a_key_may_be_any_path_and_is_told_where_no_wrapper_is_known(tree, key):
    source = Source("run.pt", "torch", tree)
    assert not known(choose(source, known)[1])
    assert hint(source, known) == f"its weights lie under {key}; add `key {key}`"
    assert chosen(tree, key)[:2] == (key, set(NAMES))
    with pytest.raises(
        UserError, match=f"key other names no set of weights; its weights lie under {key}; add `key {key}`"
    ):
        chosen(tree, "other")


def test_a_key_above_a_known_wrapper_is_enough():
    assert chosen({"a": {"state_dict": state("module.")}}, "a")[:2] == ("a.state_dict.module", set(NAMES))


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        (
            {"a": {"b": {"x": tensor(), "y": tensor()}}, "c": {"z": tensor()}},
            r"its tensors lie under a\.b \(2\), c \(1\); name the weights with `key a\.b",
        ),
        ({f"p{i}": {"x": tensor()} for i in range(9)}, r"p4 \(1\) and 4 more places; name"),
        (
            {"state": {0: {"exp_avg": tensor()}}, "param_groups": [{"lr": 0.1}]},
            "is the state of an optimizer; give the file of the weights",
        ),
        ({"steps": [tensor()], "epoch": 3}, "holds no tensors with names"),
    ],
)
def test_where_tensors_lie_that_are_no_known_weights_is_told(tree, says):
    source = Source("run.pt", "torch", tree)
    assert hint(source, known) == "" and re.search(says, elsewhere(source))


def test_only_ties_among_the_chosen_weights_are_told():
    source = Source("run.pt", "torch", {}, tied=[("model.a", "ema.a"), ("model.b", "model.c", "ema.b")])
    weights = {
        name: Tensor(f"model.{name}", np.dtype(np.float32), (1,), lambda: np.zeros(1, np.float32)) for name in "abc"
    }
    assert tied_names(source, weights) == [("model.b", "model.c")]


def test_where_none_is_known_the_largest_set_is_given_to_name_the_nearest_layout():
    assert chosen({"model": {"a": tensor(), "b": tensor()}, "optimizer": {"c": tensor()}, "args": Marker("set")})[
        :2
    ] == ("model", {"a", "b"})
    assert chosen({"a": tensor(), "b.c": tensor()})[:2] == (".", {"a", "b.c"})
    assert chosen({"epoch": 3})[:2] == (".", set())


def test_hundreds_of_sets_inside_each_other_are_refused():
    prefixes = ("module.", "model.", "net.", "backbone.")
    with pytest.raises(UserError, match="more than 200 sets"):
        chosen({"".join(order) + "x": tensor() for order in itertools.product(prefixes, repeat=6)})


def test_hundreds_of_sets_beside_each_other_are_refused():
    with pytest.raises(UserError, match="more than 200 sets of the same"):
        chosen({"model": state(), "others": {f"run{i}": state() for i in range(300)}})


def test_one_name_with_and_without_a_wrapper_is_refused():
    with pytest.raises(UserError, match="with and without a wrapper's prefix"):
        chosen({**state(), "patch._orig_mod.weight": tensor()})


def test_a_part_of_a_known_set_is_taken_when_it_is_asked_for():
    """A wrapper of student and teacher is known as a whole; with --key the student comes alone."""

    def whole(tensors: dict) -> bool:
        return "student.patch.weight" in tensors or known(tensors)

    source = Source("run.pt", "torch", state("student.") | state("teacher."))
    assert choose(source, whole)[0] == "."
    label, tensors, left_out, _ = choose(source, whole, "student")
    assert (label, set(tensors), left_out) == ("student", set(NAMES), ["teacher (3 tensors)"])
