"""A file of the user's that hides a module of Python's: `python -m` looks first where it is started.

It imports what Python itself has imported by then, so that it works whatever is hidden.
"""

import os
import sys


def end_if_hidden() -> None:
    """After a module could not be imported: end with a sentence if a file in this folder has the name of Python's."""
    here = os.path.realpath(os.getcwd())
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        folder = os.path.dirname(os.path.realpath(file))
        if file and name in {*sys.stdlib_module_names, "numpy", "jax"} and folder in (here, os.path.join(here, name)):
            print(
                f"vit-jax: error: {file}: hides the module of this name; rename it, or start in another folder",
                file=sys.stderr,
            )
            sys.exit(2)
