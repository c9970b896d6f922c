"""What surrounds a process: files that hide our packages, signals that are ignored, a host without a name."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import vit_jax
from vit_jax.errors import UserError
from vit_jax.extras.report.hook import leave_report
from vit_jax.files.reading import show_path
from vit_jax.machine import hosts
from vit_jax.runs import Run
from vit_jax.training.stopping import signals


def python(program: str, *words: object, cwd: Path | None = None, **env: str) -> "subprocess.CompletedProcess[str]":
    """`python -c PROGRAM WORDS`; keywords are environment variables."""
    command = [sys.executable, "-c", program, *map(str, words)]
    return subprocess.run(command, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, timeout=600)


USES = {
    "load": "vit_jax.load('a.safetensors')",
    "export": "vit_jax.export(vit_jax.build('vit-ti16', 3, 16, depth=1), 'b.safetensors', to='timm')",
    "init": "vit_jax.preset('digits', init='a.safetensors')",
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("hiding", ["convert.py", pytest.param("convert/__init__.py", marks=pytest.mark.slow)])
def test_a_file_that_hides_convert_is_named(use, hiding, tmp_path):
    save_file({"w": np.ones(2, np.float32)}, tmp_path / "a.safetensors")
    (tmp_path / "convert").mkdir()
    (tmp_path / hiding).write_text("")
    if hiding == "convert.py":
        (tmp_path / "convert").rmdir()
    code = f"import vit_jax\ntry:\n    {USES[use]}\nexcept vit_jax.UserError as error:\n    print(error)"
    done = python(code, cwd=tmp_path)
    says = "hides this package of vit-jax; rename it, or start in another folder\n"
    assert done.stdout.endswith(f"{tmp_path / hiding} {says}"), done.stderr


def test_a_file_that_hides_vit_jax_is_named(tmp_path):
    (tmp_path / "vit_jax.py").write_text("")
    words = [sys.executable, "-m", "convert", "formats"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    says = "hides the package vit_jax; rename it, or start in another folder\n"
    assert (done.returncode, done.stderr) == (2, f"vit-jax: error: {tmp_path / 'vit_jax.py'}: {says}")


def test_a_terminal_that_is_closed_ends_nothing_under_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals() as caught:
            signal.raise_signal(signal.SIGHUP)
        assert not caught.name
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("silent", [False, True])
def test_a_first_host_that_cannot_find_itself_says_so(silent, monkeypatch):
    def unknown(*_):
        time.sleep(20 if silent else 0)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setattr(hosts, "NAMED", 1)
    began = time.monotonic()
    with pytest.raises(UserError, match=r"names the first host node0\.cluster, which it cannot find itself"):
        vit_jax.train(vit_jax.preset("digits").run, hosts="node0.cluster:1234,2,0")
    assert time.monotonic() - began < 15


def test_the_remedy_for_a_report_names_a_flag_that_there_is(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    leave_report(Run(tmp_path / "run"))
    assert f"`vit-jax report {show_path(tmp_path / 'run')} --out FILE.html`" in capsys.readouterr().out
