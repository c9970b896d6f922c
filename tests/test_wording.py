"""What a message calls a field, and what a mistaken name was meant to be: the same in the shell and in Python."""

import re

import pytest

import vit_jax
from vit_jax.config import flags
from vit_jax.config.hints import as_argument, hint
from vit_jax.config.synonyms import FLAGS
from vit_jax.config.wording import python_words
from vit_jax.errors import UserError
from vit_jax.tasks.table import field_types

WORDS = {
    "give --data.range 0 1, or store": "give fields={'data.range': (0.0, 1.0)}, or store",
    "lower --batch": "lower batch",
    "lower --optim.lr (now 1), or --optim.clip 1 under": "lower optim.lr (now 1), or fields={'optim.clip': 1.0} under",
    "--compute-dtype bfloat16, or --scan --remat full": "fields={'compute_dtype': 'bfloat16'}, or "
    "fields={'scan': True, 'remat': 'full'}",
    "leave --data.range out": "leave data.range out",
    "add --data.dir another folder": "add data.dir another folder",
    "take --data.no-download": "take fields={'data.download': False}",
    "give --model.image 32 64": "give fields={'model.image': (32, 64)}",
    "as in --data.source folder:PATH (in": "as in source='folder:PATH' (in",
    "with --probe knn": "with probe knn",
    "run `python -m vit_jax.train --batch 3`": "run `python -m vit_jax.train --batch 3`",
    "--resume runs/x": "--resume runs/x",
    "a-b --c": "a-b --c",
}


@pytest.mark.parametrize("text", WORDS)
def test_flags_are_arguments_or_fields_in_python(text):
    assert python_words(text, ("source", "probe"), field_types()) == WORDS[text]


def test_a_hint_in_python_is_that_of_the_shell():
    run = vit_jax.preset("digits").run
    known = flags.flags(run)
    for word in [*FLAGS, "epcohs", "lerning_rate", "batchsise", "dropuot", "device", "fp16"]:
        in_shell, names = flags.instead(f"--{word}", known), {name: flag.help for name, flag in known.items()}
        assert (
            hint(word, names, write=as_argument)
            == re.sub(
                r"(?<=[ ,])--([\w.-]+)", lambda m: as_argument(m[1]), in_shell.removesuffix("; --help lists them")
            )
            or ": " in in_shell
        )


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: vit_jax.preset("digits", fields={"epoch": 2}), "epoch is no field; here it is epochs"),
        (lambda: vit_jax.preset("digits", fields={"lr": 1}), "lr is no field; here it is optim.lr"),
        (lambda: vit_jax.preset("digits", fields={"batch_size": 8}), "batch_size is no field; here it is batch"),
        (lambda: vit_jax.preset("digits", fields={"num_layers": 8}), "num_layers is no field; here it is model.depth"),
        (lambda: vit_jax.preset("digits", fields={"device": "cuda"}), "device is no field: jax takes the devices"),
        (lambda: vit_jax.preset("digits", fields={"depht": 8}), "depht is no field; nearest: .*model.depth"),
        (lambda: vit_jax.preset("digits", fields=[("epochs", 2)]), "fields: is a list; give a dict"),
        (lambda: vit_jax.preset(3), "name: is 3; give the name of a preset"),
        (lambda: vit_jax.build("vit-s16", img_size=32), "img_size: is no argument; here it is image"),
        (lambda: vit_jax.build("vit-s16", num_classes=3), "num_classes: is no argument; here it is classes"),
        (lambda: vit_jax.build("vit-s16", depht=3), "depht: is no argument; nearest: depth"),
        (lambda: vit_jax.optimizer("adamw", learning_rate=1), "optim.learning_rate is no field; here it is lr"),
        (lambda: vit_jax.optimizer("adamw", wd=1), "optim.wd is no field; here it is weight_decay"),
    ],
)
def test_what_was_meant_is_told_by_the_names_that_the_caller_has(call, says):
    with pytest.raises(UserError, match=f"^{says}"):
        call()
