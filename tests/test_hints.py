"""What a mistaken name of a field was meant to be: the same in the shell and in Python."""

import re

import pytest

import vit_jax
from vit_jax.config import flags
from vit_jax.config.hints import FLAGS, hint
from vit_jax.errors import UserError
from vit_jax.runs.values import flat


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
