"""Errors with parts: how they read, and how those who pass them on name the place and the options in them."""

import copy
import linecache
import pickle
import re

import pytest

import vit_jax
from vit_jax.config import flags
from vit_jax.config.hints import FLAGS, hint
from vit_jax.errors import Field, Interrupted, UserError, about, fields_inside
from vit_jax.runs.values import flat
from vit_jax.weights.opening import EXPORTED, LOADS, convert_first, options_in

SMALL = "vit = vit_jax.build('vit-ti4', image=8, classes=2, depth=1, width=8, heads=2, hidden=8)"


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (UserError(Field("model.width"), "is 0", "give 1 or more"), "model.width is 0: give 1 or more"),
        (UserError("a.pt", "is empty", "get it again"), "a.pt: is empty; get it again"),
        (UserError("a.pt", "is empty"), "a.pt: is empty"),
        (UserError("there are no runs", remedy="train one"), "there are no runs; train one"),
    ],
)
def test_an_error_reads_as_one_sentence(error, sentence):
    assert str(error) == sentence
    for again in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
        assert str(again) == sentence


def raised(error, context):
    with pytest.raises(UserError) as caught, context:
        raise error
    return caught.value


def test_a_field_is_named_by_where_its_config_stands():
    error = raised(raised(UserError(Field("width"), "is 0", "give 1"), fields_inside("text")), fields_inside("model"))
    assert (error.subject, error.what, error.remedy) == ("model.text.width", "is 0", "give 1")
    assert str(raised(UserError("a.pt", "is empty"), fields_inside("model"))) == "a.pt: is empty"


def test_an_error_of_a_file_keeps_what_it_was_about():
    error = raised(UserError(Field("width"), "is 0", "give 1"), about("--config a.json"))
    assert (error.subject, error.what, error.remedy) == ("--config a.json", "width is 0", "give 1")


COMMAND = "to `python -m convert a.pt X.safetensors`, then give X.safetensors here"


@pytest.mark.parametrize(
    ("path", "own", "remedy", "told"),
    [
        ("a.pt", (), "give `fields mean=...` or `key LABEL`", f"give `fields mean=...` or `key LABEL` {COMMAND}"),
        ("a.pt", LOADS, "give `fields mean=...` or `key LABEL`", "give `fields mean=...` or `key LABEL`"),
        ("a.pt", LOADS, "leave it out with `adapt head=drop`", f"leave it out with `adapt head=drop` {COMMAND}"),
        ("a.pt", LOADS, "add `allow_nonfinite True`", "take other weights"),
        ("runs", LOADS, "name one of them with `file`", "give runs/NAME with one of these names"),
        ("", LOADS, "add `weights_only True`", f"add `weights_only True`{EXPORTED}"),
        ("a.pt", (), "get it again", "get it again"),
    ],
)
def test_a_remedy_of_convert_that_a_function_has_not_is_told_with_the_command(path, own, remedy, told):
    error = raised(UserError("a.pt", "is something", remedy), convert_first(path, own))
    assert (error.what, error.remedy) == ("is something", told)


def test_the_options_in_a_text_are_what_stands_in_backticks():
    text = (
        "give `fields mean=... std=...`, or `weights_only True` of `python -m convert a`; the key is `data.range 0 1`"
    )
    assert options_in(text) == {"fields", "weights_only", "python", "data.range"}


@pytest.mark.parametrize("parts", [("nothing is there",), ("a.pt", "is empty"), ("a.pt", "is empty", "get it")])
def test_an_error_can_end_with_more(parts):
    error = UserError(*parts)
    whole = str(error)
    error.add(" again")
    assert str(error) == f"{whole} again"


CELLS = {  # what a user may call wrongly: the sentence that he reads; tests/test_notebook.py has more of them
    "vit_jax.train('digitz')": "UserError: there is no preset 'digitz'",
    "nnx.jit(lambda vit, x: vit(x))(vit, jnp.ones((2, 8, 8, 3), int))": "ArgumentError: images are int32",
}


@pytest.mark.parametrize("call", CELLS)
def test_a_notebook_shows_the_sentence_below_the_users_own_line(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cell = f"import vit_jax, jax.numpy as jnp\nfrom flax import nnx\n{SMALL}\ndef wrong():\n    {call}\nwrong()\n"
    name = "/tmp/ipykernel_1/2.py"  # as a kernel calls a cell, and where Python looks for its lines
    monkeypatch.setitem(linecache.cache, name, (len(cell), None, cell.splitlines(keepends=True), name))
    with pytest.raises(BaseException) as caught:
        exec(compile(cell, name, "exec"), {})
    *lines, sentence = caught.value._render_traceback_()
    lines.pop(0)  # that of this test
    assert lines[:2] == ["line 6: wrong()", f"line 5, in wrong: {call}"] and sentence.startswith(CELLS[call])
    assert all(call in line for line in lines[1:]), "no line of a library"


def test_an_interruption_is_told_as_briefly_and_passes_those_who_catch_exceptions():
    error = Interrupted("SIGINT: saved at step 3", "SIGINT")
    assert error._render_traceback_() == ["Interrupted: SIGINT: saved at step 3"]
    assert isinstance(error, KeyboardInterrupt) and not isinstance(error, Exception)


# ---------------------------------------------------- what a mistaken name of a field was meant to be


def test_a_hint_names_fields_that_are_there():
    run = vit_jax.preset("digits").run
    known = flags.flags(run)
    for word in [*FLAGS, "epcohs", "lerning_rate", "batchsise", "dropuot", "device", "fp16"]:
        clause = flags.instead(f"--{word}", known)
        meant = re.fullmatch(r"; (?:here it is|nearest:) (.*)", clause)
        names = re.split(r", | or ", meant[1]) if meant else re.findall(r"`([a-z_.]+)", clause)
        assert {*names} <= flat(run).keys(), word
        assert clause in ("; --help lists them", hint(word, {name: flag.help for name, flag in known.items()}))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: vit_jax.preset("digits", fields={"epoch": 2}), "epoch is no field; here it is epochs"),
        (lambda: vit_jax.preset("digits", fields={"lr": 1}), "lr is no field; here it is optim.lr"),
        (lambda: vit_jax.preset("digits", fields={"device": "cuda"}), "device is no field: jax takes the devices"),
        (lambda: vit_jax.preset("digits", fields={"depht": 8}), "depht is no field; nearest: .*model.depth"),
        (lambda: vit_jax.preset("digits", fields=[("epochs", 2)]), "fields: is a list; give a dict"),
        (lambda: vit_jax.preset(3), "name: is 3; give the name of a preset"),
        (lambda: vit_jax.build("vit-s16", img_size=32), "img_size: is no argument; here it is image"),
        (lambda: vit_jax.build("vit-s16", depht=3), "depht: is no argument; nearest: depth"),
        (lambda: vit_jax.optimizer("adamw", learning_rate=1), "optim.learning_rate is no field; here it is lr"),
    ],
)
def test_what_was_meant_is_told_by_the_names_that_the_caller_has(call, says):
    with pytest.raises(UserError, match=f"^{says}"):
        call()
