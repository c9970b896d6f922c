"""Pipes: lines are answered as they come, and whoever stops to read ends the command quietly."""

import contextlib
import io
import os
import subprocess
import sys

import numpy as np
import pytest

from vit_jax.errors import UserError
from vit_jax.files import terminal
from vit_jax.files.lines import arriving_lines


def test_lines_are_those_of_the_text_however_it_arrives():
    rng = np.random.default_rng(0)
    texts = ["x" * rng.integers(0, 40) + "ü\u2028\u0085"[: rng.integers(0, 4)] for _ in range(300)]
    content = b"\xef\xbb\xbf" + "\r\n".join(texts).encode()

    class Pieces(io.BytesIO):
        def read1(self, size=-1):
            return super().read1(min(size, int(rng.integers(1, 90))))

    for most in (1, 7, 64, 1000):
        groups = list(arriving_lines(Pieces(content), "stdin", most))
        assert [line for group in groups for line in group] == texts
        assert {len(group) for group in groups[:-1]} <= {most} and groups[-1][-1].where == "stdin line 300"
    assert list(arriving_lines(io.BytesIO(), "stdin", 64)) == []


@pytest.mark.skipif(os.name == "nt", reason="a pipe there cannot be asked whether it has more")
def test_what_is_there_is_not_held_back_until_more_comes():
    """Only sizes that are powers of two, and nothing is lost or given twice."""
    read, write = os.pipe()
    with open(read, "rb") as stream, contextlib.ExitStack() as writer:
        writer.callback(os.close, write)
        groups = arriving_lines(stream, "stdin", 8)
        for sent, expected in (
            (b"a\n", [["a"]]),
            (b"b\nc\nd\n", [["b", "c"], ["d"]]),
            (b"e\nf\ng", [["e", "f"]]),  # the third is not complete
            (b"h\n" + b"i\n" * 9, [["gh", *"iiiiiii"], ["i", "i"]]),
        ):
            os.write(write, sent)
            assert [next(groups) for _ in expected] == expected
        os.write(write, b"j\n\xff\nk\n")
        assert next(groups) == ["j"]
        with pytest.raises(UserError, match=r"^stdin line 18: is no UTF-8 \(it has the byte 0xff\)"):
            next(groups)


@pytest.mark.skipif(os.name == "nt", reason="a POSIX shell's pipes")
def test_a_reader_that_stops_ends_it_quietly_and_what_was_asked_for_is_written(tmp_path, digits_run):
    """Whole processes: a second line is never asked for, and with --csv the work goes on without a reader."""
    image, run = next((digits_run / "samples").glob("*.png"), None), str(digits_run)
    if image is None:
        from PIL import Image

        Image.new("L", (8, 8)).save(image := tmp_path / "x.png")
    for more in ([], ["--csv", str(tmp_path / "out.csv")]):
        command = [sys.executable, "-m", "vit_jax.predict", run, "--batch", "2", *more]
        pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, **pipe) as process:
            process.stdin.write(f"{image}\n".encode())
            process.stdin.flush()
            assert process.stdout.readline().strip().isdigit(), "answered before the end of stdin"
            process.stdout.close()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(f"{image}\n\n".encode() * 3)
                process.stdin.close()
            said = process.stderr.read().decode()
            assert process.wait() == 0 and "Traceback" not in said and "rror" not in said, said
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 1 + 3 * 4 + 3


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [40, 61, 80, 200])
def test_what_is_printed_ends_its_lines_at_words_on_a_terminal_alone(columns, monkeypatch, capsys):
    """Below its label; a long word and a command that is to be copied stay whole."""
    command, path = "python -m convert a X.safetensors --set heads=12 --set eps=1e-6", "/".join(["folder"] * 15)
    texts = [
        "note     " + " ".join(["some words that say what is wrong, and-hyphens"] * 5),
        f"vit-jax: error: {path}: is no run; state that with `{command}`, then give it here, or do something else",
        f"vit-jax: SIGTERM: saved at step 1,000, of ten thousand steps in all; go on with: {command}",
        "         remarks stand below others, and have no label of their own but only the room for one before them",
        "short", "",
    ]  # fmt: skip
    monkeypatch.setenv("COLUMNS", str(columns))
    filled = terminal.fill(
        flags := "leave it out, or give --data.skip-unreadable and --no-data.download " * 9, columns, 2, 4
    )
    assert filled.split() == flags.split() and max(map(len, filled.split("\n"))) <= columns
    for text in texts:
        terminal.print_wrapped(text, screen := Screen())
        lines = screen.getvalue().removesuffix("\n").split("\n")
        assert " ".join(line.strip() for line in lines) == text.strip(), "no word is cut, none is lost"
        whole = [part for part in (f"`{command}`,", command, f"{path}:") if part in text]
        for line in lines:
            held = [part for part in whole if line.endswith(part)]
            assert len(line) <= columns or held, line
        assert all(line[:9].strip() == "" for line in lines[1:]), "below what stands behind the label"
        assert all(any(part in line for line in lines) for part in whole[:1])
        terminal.print_wrapped(text)
        assert capsys.readouterr().out == f"{text}\n"


@pytest.mark.skipif(os.name == "nt", reason="a pseudo-terminal")
@pytest.mark.parametrize(
    "words", ["convert nothing-of-this-name x.pt --to a-layout-that-is-not-there", "predict nothing x.png"]
)
def test_an_error_ends_its_lines_at_words_where_a_terminal_shows_it(words, tmp_path):
    import pty

    ours, theirs = pty.openpty()
    program = [sys.executable, "-m", "vit_jax", *words.split()]
    subprocess.run(program, stderr=theirs, cwd=tmp_path, env={**os.environ, "COLUMNS": "44"}, check=False)
    os.close(theirs)
    lines = os.read(ours, 4096).decode().splitlines()
    assert len(lines) > 1 and all(len(line) <= 44 for line in lines) and lines[0].startswith("vit-jax: error: ")
