"""What earlier versions had is refused in one sentence that says what to use, and their runs are read."""

import pytest

from tests.image_sources import a_run
from vit_jax.commands.cli import main
from vit_jax.commands.train_options import parse
from vit_jax.config.run import RunConfig
from vit_jax.errors import USER, UserError
from vit_jax.runs.values import from_dict, to_dict, with_fields


@pytest.mark.parametrize("name, value, said", [
    ("data.lanes", 4, "one reader; to mix more of their images, give a greater `data.window`"),
    ("data.disk_cache", 2.0, "copy them here"),
    ("augment.mix_switch", 0.3, "with both each pair takes one of the two"),
    ("optim.base_momentum", 0.8, "it is 0.85, as in PyTorch"),
])  # fmt: skip
def test_a_field_that_is_gone_says_what_takes_its_place(name, value, said):
    with pytest.raises(UserError, match=f"{name} is no field: .*{said}"):
        with_fields(a_run("digits"), {name: value})
    with pytest.raises(UserError, match=f"there is no field --{name.replace('_', '-')}: .*{said}"):
        parse(["digits", f"--{name.replace('_', '-')}", str(value)])


@pytest.mark.parametrize("command, said", [("shards", "write tars of webdataset with tarfile of Python")])
def test_a_command_that_is_gone_says_what_takes_its_place(command, said, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["vit-jax", command, "x"])
    assert main() == USER and f"there is no command '{command}' any more: {said}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "part, name, same, other",
    [
        ("data", "lanes", (0, 1), 8),
        ("data", "disk_cache", (0.0, 2.5), None),
        ("augment", "mix_off", (0,), 3),
        ("optim", "final_div_factor", (10_000, 1e4), 100.0),
    ],
)
def test_a_config_with_a_field_that_is_gone_is_read_where_the_run_is_the_same_without_it(part, name, same, other):
    run = a_run("digits")
    values = to_dict(run)
    for value in same:
        assert from_dict(RunConfig, {**values, part: {**values[part], name: value}}) == run
    if other is not None:
        with pytest.raises(UserError, match=f"{part}.{name} is no field: "):
            from_dict(RunConfig, {**values, part: {**values[part], name: other}})
