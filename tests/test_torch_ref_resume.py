"""`python -m torch_ref.train --resume`: bit for bit the run that was never stopped, and what it refuses."""

import pytest

torch = pytest.importorskip("torch")

from tests.test_torch_ref_train import door  # noqa: E402

torch.set_num_threads(1)

TINY = (
    "--model.width",
    "16",
    "--model.hidden",
    "32",
    "--model.depth",
    "1",
    "--epochs",
    "1",
    "--log-every",
    "4",
    "--batch",
    "64",
)
RUNS = {
    "AdamW with an average, dropout and shifts": (
        "--optim.name",
        "adamw",
        "--ema",
        "0.9",
        "--model.dropout",
        "0.1",
        "--augment.crop-padding",
        "1",
    ),
    "momentum in one cycle": (
        "--optim.name",
        "momentum",
        "--optim.schedule",
        "one_cycle",
        "--optim.cycle-momentum",
        "--optim.lr",
        "0.01",
        "--optim.nesterov",
    ),
}


def tensors(value, path=""):
    if isinstance(value, torch.Tensor):
        return {path: value}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return {k: v for key, item in items for k, v in tensors(item, f"{path}.{key}").items()}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_goes_on_is_one_that_never_stopped(monkeypatch, tmp_path, capsys, name):
    assert door(monkeypatch, tmp_path, "digits", *TINY, *RUNS[name], "--max-steps", 9, "--name", "whole") == 0
    assert door(monkeypatch, tmp_path, "digits", *TINY, *RUNS[name], "--max-steps", 4, "--name", "parts") == 0
    assert door(monkeypatch, tmp_path, "--resume", "runs/parts.pt", "--max-steps", 9) == 0
    told = capsys.readouterr().out
    assert "going on after step 4" in told and "step 8/20" in told
    whole, parts = (torch.load(tmp_path / f"runs/{n}.pt", weights_only=True) for n in ("whole", "parts"))
    assert parts["step"] == 9 and parts["config"]["max_steps"] == 9
    a, b = tensors(whole), tensors(parts)
    assert a.keys() == b.keys() and len(a) > 20
    assert all(torch.equal(x, b[place]) for place, x in a.items())
    assert whole["optimizer"]["param_groups"] == parts["optimizer"]["param_groups"]


def test_parameters_are_found_by_name_wherever_a_file_has_them(monkeypatch, tmp_path):
    """Another order of the groups and of the parameters in them is the same state."""
    for name in ("straight", "crossed"):
        assert door(monkeypatch, tmp_path, "digits", *TINY, "--max-steps", 3, "--name", name) == 0
    saved = torch.load(tmp_path / "runs/crossed.pt", weights_only=True)
    optimizer = saved["optimizer"]
    count = len(optimizer["state"])
    optimizer["state"] = {count - 1 - i: entry for i, entry in optimizer["state"].items()}
    for group in optimizer["param_groups"]:
        group["params"] = [count - 1 - i for i in group["params"]]
    optimizer["param_groups"].reverse()
    torch.save(saved, tmp_path / "runs/crossed.pt")
    for name in ("straight", "crossed"):
        assert door(monkeypatch, tmp_path, "--resume", f"runs/{name}.pt", "--max-steps", 5) == 0
    a, b = (tensors(torch.load(tmp_path / f"runs/{n}.pt", weights_only=True)) for n in ("straight", "crossed"))
    assert a.keys() == b.keys() and all(torch.equal(x, b[place]) for place, x in a.items())


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    with pytest.MonkeyPatch.context() as patch:
        assert door(patch, folder, "digits", *TINY, "--max-steps", 2, "--name", "a", "--optim.lr", 0.0035) == 0
    saved = torch.load(folder / "runs/a.pt", weights_only=True)
    (folder / "text.pt").write_text("words")
    torch.save(saved["model"], folder / "weights.pt")
    torch.save({**saved, "model": {}}, folder / "lacking.pt")
    torch.save({**saved, "config": {"task": 3}}, folder / "strange.pt")
    torch.save({**saved, "data": {"name": "others"}}, folder / "other.pt")
    return folder


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--resume", "nothing.pt"), "resume nothing.pt: cannot be read (No such file or directory); give one"),
        (("--resume", "text.pt"), "resume text.pt: is not a PyTorch file"),
        (("--resume", "weights.pt"), "does not hold model, optimizer, step and config"),
        (
            ("--resume", "lacking.pt", "--max-steps", 4),
            "resume lacking.pt: its model or optimizer is missing or damaged (RuntimeError)",
        ),
        (("--resume", "strange.pt"), "resume strange.pt: its config is not a run's"),
        (
            ("--resume", "other.pt", "--max-steps", 4),
            "resume other.pt: data.source digits is not the data that this run began with",
        ),
        (
            ("digits", "--resume", "runs/a.pt"),
            "resume runs/a.pt brings its own config: leave out the preset 'digits'",
        ),
        (
            ("--resume", "runs/a.pt", "--optim.lr", 2, "--max-steps", 4),
            "holds another run, which differs in optim.lr 0.0035 -> 2.0; leave these as they were",
        ),
        (
            ("--resume", "runs/a.pt"),
            "has made 2 steps, and is to end after 2; give a larger `max_steps`, or 0 for the whole run",
        ),
    ],
)
def test_mistakes_are_one_sentence(monkeypatch, files, capsys, arguments, told):
    before = (files / "runs/a.pt").read_bytes()
    assert door(monkeypatch, files, *arguments) == 2
    error = capsys.readouterr().err
    assert told in error and len(error.splitlines()) == 1
    assert (files / "runs/a.pt").read_bytes() == before
