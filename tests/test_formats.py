"""The format of a config: read again as it was written, and one sentence on another format and on what is none."""

import pytest

from vit_jax.config.run import RunConfig
from vit_jax.errors import UserError
from vit_jax.presets.table import preset
from vit_jax.runs import Run
from vit_jax.runs.values import FORMAT, LAST_READER, from_dict, strip_format, to_dict


@pytest.mark.parametrize(
    ("number", "command"),
    [(1, ("train", "--resume")), (2, ("evaluate",)), (3, ("convert",))],
)
def test_a_run_of_an_older_format_is_refused_with_the_commit_that_reads_it(tmp_path, inside, number, command):
    folder = Run(tmp_path / "runs" / "old")
    config = to_dict(preset("digits").run) | {"format": number}
    folder.create({"preset": "digits", "config": config, "data": None, "format": number})
    done = inside(*command, folder.path, *(["out.safetensors"] if command == ("convert",) else []))
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    assert f"format {number} is not {FORMAT}" in done.stderr and LAST_READER in done.stderr


def test_a_config_without_a_number_is_of_the_current_format():
    run = preset("numbers").run
    values = to_dict(run)
    assert strip_format(values) == {name: value for name, value in values.items() if name != "format"}
    assert from_dict(RunConfig, strip_format(values)) == run
    assert values["format"] == FORMAT


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"format": 5, "task": "classify"},
            "format 5 is not 4, which this version of vit-jax writes: read it with the version",
        ),
        (
            {"format": FORMAT, "task": "clasify"},
            "task 'clasify' is not known to this version of vit-jax; nearest: classify",
        ),
        ({"format": FORMAT}, "task is missing"),
        ({"format": FORMAT, "task": "translate", "augment": {"flip": True}}, "augment.flip is no field"),
        ("digits", "str is not a group of fields"),
        ([], "list is not a group of fields"),
    ],
)
def test_what_is_no_config_is_refused_in_one_sentence(values, message):
    with pytest.raises(UserError) as error:
        from_dict(RunConfig, values)
    assert message in str(error.value) and "\n" not in str(error.value)
