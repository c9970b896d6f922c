"""The `vit-jax` command: hands on to the doors."""

from __future__ import annotations

import importlib
import sys

from .config import nearest
from .errors import USER

DOORS = {
    "train": "train a network, or go on with a run",
    "evaluate": "measure a run on a split",
    "predict": "use a run: what its network says to files or texts",
    "convert": "bring weights from any layout to any other",
}


def main() -> int:
    """`vit-jax DOOR ...` is `python -m vit_jax.DOOR ...`."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        print(
            "usage: vit-jax DOOR [...]\n\n"
            + "\n".join(f"  {door:10} {what}" for door, what in DOORS.items())
            + "\n\nvit-jax DOOR --help says more."
        )
        return 0
    if name == "--version":
        from . import __version__

        print(f"vit-jax {__version__}")
        return 0
    if name not in DOORS:
        print(f"vit-jax: error: there is no {name!r}{nearest(name, list(DOORS))}", file=sys.stderr)
        return USER
    sys.argv = [f"vit-jax {name}", *sys.argv[2:]]
    if name == "convert":
        return importlib.import_module("convert.__main__").main("vit-jax convert")
    module = ".train.door" if name == "train" else f".{name}"
    return importlib.import_module(module, __package__).main()


if __name__ == "__main__":
    sys.exit(main())
