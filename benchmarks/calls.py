"""How many calls a conversion makes from one file of convert to another: what a reader who follows it has to follow.

    python -m benchmarks.calls [SRC] [--to LAYOUT]

SRC defaults to a freshly drawn digits network in timm's layout, converted to our safetensors. Only calls between files
count, those that a file makes to itself do not. Prints the sum, the files, and the busiest pairs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

SHOWN = 12  # pairs


def digits_in_timm(folder: str) -> str:
    """A digits network with random weights, as timm names them; returns its path."""
    from safetensors.numpy import save_file

    from convert import rules
    from convert.dialects import LAYOUTS
    from vit_jax.presets.table import preset

    rng = np.random.default_rng(0)
    names = rules.file_shapes(rules.narrow(LAYOUTS["timm"].rows(preset("digits").run.model)))
    path = f"{folder}/digits.safetensors"
    save_file({name: rng.normal(size=shape).astype(np.float32) for name, shape in names.items()}, path)
    return path


def flags() -> list[str]:
    """What shapes do not tell of the digits network."""
    from vit_jax.presets.table import preset

    c: Any = preset("digits").run.model
    fields = {"image": c.image, "heads": c.heads, "eps": c.eps, "activation": c.activation, "pool": c.pool}
    return [text for name, value in fields.items() for text in ("--set", f"{name}={value}")]


def traced(arguments: list[str]) -> Counter[tuple[str, str]]:
    """{(calling file, called file): calls} of one conversion, files relative to convert/."""
    import convert
    from convert.__main__ import main

    root = str(Path(convert.__file__).parent) + os.sep
    calls: Counter[tuple[str, str]] = Counter()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_back and frame.f_code.co_name != "<module>":
            there, here = frame.f_code.co_filename, frame.f_back.f_code.co_filename
            if there != here and there.startswith(root) and here.startswith(root):
                calls[here.removeprefix(root), there.removeprefix(root)] += 1

    sys.argv = ["convert", *arguments]
    sys.setprofile(profile)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
            code = main()
    finally:
        sys.setprofile(None)
    if code:
        raise SystemExit(errors.getvalue())
    return calls


def main() -> None:
    """Trace a conversion and print what it called."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("src", nargs="?", help="a file to convert; default: the digits in timm's layout")
    parser.add_argument("--to", default="vit-jax", help="the layout to convert to")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = [arguments.src] if arguments.src else [digits_in_timm(folder), *flags()]
        calls = traced([*source, f"{folder}/out.safetensors", "--to", arguments.to, "--weights-only"])
    files = {name for pair in calls for name in pair}
    print(f"{sum(calls.values())} calls between {len(files)} files of convert")
    for (here, there), count in calls.most_common(SHOWN):
        print(f"  {count:6}  {here} -> {there}")


if __name__ == "__main__":
    main()
