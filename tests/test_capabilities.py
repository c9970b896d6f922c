"""Capabilities of other packages: flags of predict, methods, pictures of a run, and what is wrong in them."""

import os

import pytest

from tests.test_plugins import package as write_package
from tests.test_processes import python

PACKAGE = """
from dataclasses import dataclass
from vit_jax.config.fields import option
from vit_jax.tasks.capability import Capability

@dataclass(frozen=True, kw_only=True)
class CountFlags:
    count_to: str = option("", "also write the number of inputs to this file")

class Count(Capability):
    flags = CountFlags

    @classmethod
    def asked(cls, options, stated):
        return bool(options.count_to)

    @classmethod
    def outputs(cls, options):
        return [{"count_to": options.count_to}]

    def count(self, inputs):
        return len(self.predictor.as_list(inputs)[0])

    def check(self, options):
        if options.count_to == "raise":
            raise ValueError("no count")

    def after_answers(self, options, inputs, caption):
        with open(options.count_to, "w") as file:
            print(self.count(inputs), file=file)
        yield "counted", f"{len(inputs)} inputs"

    @classmethod
    def draw(cls, task, network, data, result, plots, caption):
        (plots / "count.txt").write_text(f"{len(data.splits['test'])} {caption}")

@dataclass(frozen=True, kw_only=True)
class TakenFlags:
    top: int = option(1, "of others")

class Taken(Capability):
    flags = TakenFlags

# Each can be used alone; Python cannot derive a class from both.
@dataclass(frozen=True, kw_only=True, slots=True)
class FirstFlags:
    first_to: str = option("", "of the first")

@dataclass(frozen=True, kw_only=True, slots=True)
class SecondFlags:
    second_to: str = option("", "of the second")

class First(Capability):
    flags = FirstFlags

    @classmethod
    def asked(cls, options, stated):
        return bool(options.first_to)

    @classmethod
    def outputs(cls, options):
        raise ValueError("no outputs")

class Second(Capability):
    flags = SecondFlags

@dataclass(frozen=True, kw_only=True)
class BareFlags:
    bare: int

class Bare(Capability):
    flags = BareFlags

class Failing(Capability):
    @classmethod
    def draw(cls, *arguments):
        raise ZeroDivisionError("nothing to draw")
"""
NAMES = {
    **{"count": "Count", "taken": "Taken", "bare": "Bare", "failing": "Failing"},
    **{"first": "First", "second": "Second", "gone": "Gone", "explain": "Count"},
}
LEFT_OUT = (
    "the capability 'explain' of the package count_inputs is not used: vit-jax has that name",
    "the capability 'gone' of the package count_inputs: cannot be loaded (AttributeError: ",
    "the capability 'taken' of the package count_inputs: predict has --top already; update that package, or ",
    "the capability 'bare' of the package count_inputs: failed (TypeError: ",
    "the capability 'second' of the package count_inputs: failed (TypeError: multiple bases",
)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """What a process needs to have it installed."""
    folder = tmp_path_factory.mktemp("package")
    capabilities = {name: f"count_inputs:{it}" for name, it in NAMES.items()}
    write_package(folder, "count_inputs", PACKAGE, capabilities=capabilities)
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])}


def test_its_flags_are_in_the_help_and_what_cannot_be_used_is_left_out_in_a_sentence(door, package):
    shown, usual = door("predict", "--help", **package), door("predict", "--help")
    assert "--count-to STR" in shown.stdout and "--explain-to STR" in shown.stdout
    assert len(shown.stdout.split("\n")) - len(usual.stdout.split("\n")) <= 5
    assert all(sentence in shown.stderr for sentence in LEFT_OUT), shown.stderr
    listed = door("__main__", "plugins", **package)
    assert "count: count_inputs, count_inputs:Count" in listed.stdout and "explain" in listed.stdout


def test_predict_asks_it_by_its_flag_and_says_what_it_says(door, package, digits_run, tmp_path):
    import numpy as np
    from PIL import Image

    for i in range(2):
        Image.fromarray(np.full((8, 8), 100 * i, np.uint8)).save(tmp_path / f"{i}.png")
    done = door("predict", digits_run, "0.png", "1.png", "--count-to", "counted.txt", **package)
    assert done.returncode == 0, done.stderr
    assert "2 inputs" in done.stdout + done.stderr and (tmp_path / "counted.txt").read_text() == "2\n"
    failed = door("predict", digits_run, "0.png", "--count-to", "raise", **package)
    says = "the capability 'count' of the package count_inputs: failed (ValueError: no count)"
    assert failed.returncode == 2 and says in failed.stderr and "Traceback" not in failed.stderr, failed.stderr
    failed = door("predict", digits_run, "0.png", "--first-to", "x", **package)
    says = "the capability 'first' of the package count_inputs: failed (ValueError: no outputs)"
    assert failed.returncode == 2 and says in failed.stderr and "Traceback" not in failed.stderr, failed.stderr
    code = f"import vit_jax; net = vit_jax.load({str(digits_run)!r}); print(net.capability('count').count(['a', 'b']))"
    code += "\ntry: net.capability('counts')\nexcept vit_jax.UserError as error: print(error)"
    said = python(code, **package).stdout
    assert said.startswith("2\nthere is no capability 'counts'; give one of explain, "), said


def test_a_run_ends_with_its_pictures_and_loses_nothing_by_one_that_fails(door, package, tmp_path):
    fields = {"model.width": 16, "model.depth": 1, "model.heads": 2, "model.hidden": 32, "batch": 256, "max-steps": 2}
    done = door("train", "digits", *(x for name, value in fields.items() for x in (f"--{name}", value)), **package)
    assert done.returncode == 0, done.stderr
    plots = tmp_path / "runs" / "digits" / "plots"
    assert (plots / "count.txt").read_text().startswith("359 ") and (plots / "attention.png").exists()
    why = "the capability 'failing' of the package count_inputs: failed (ZeroDivisionError: nothing to draw)"
    assert why in done.stderr and "Traceback" not in done.stderr
