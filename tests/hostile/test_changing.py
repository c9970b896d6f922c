"""Files that change while they are read, numbered as in the table of broken and hostile files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.hostile import changing
from tests.hostile.child import refuses, run
from tests.hostile.flat import A, entry, npy, npz


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_a_file_written_over_does_not_change_what_was_read(suffix: str, tmp_path: Path) -> None:
    path = _valid(tmp_path, suffix)
    outcome = run(changing.rewritten, str(path), "a")
    assert outcome.value == (A.tobytes(), A.tobytes()), outcome


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
@pytest.mark.parametrize("change", [changing.cut, changing.grown], ids=["cut", "grown"])
def test_a_file_that_changes_while_it_is_read_is_refused(
    change: Callable[..., Any], suffix: str, tmp_path: Path
) -> None:
    refuses(_valid(tmp_path, suffix), "has changed", function=change, name="a")


def _valid(folder: Path, suffix: str) -> Path:
    path = folder / f"model{suffix}"
    path.write_bytes(entry() if suffix == ".safetensors" else npz({"a.npy": npy(A)}))
    return path
