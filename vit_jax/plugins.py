"""What names stand for: features of ours and of other packages, each an object of a module, imported when first used.

Another package gives a name by an entry point of the table's group, such as `vit_jax.commands`; the packages that are
installed are looked through once, and only where a name is unknown or all are listed. A name of ours wins.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from .errors import UserError

OURS = "vit-jax"


class Plugin(NamedTuple):
    """What a name stands for."""

    target: str  # "module:object"
    says: str = ""  # one sentence, for lists
    package: str = OURS

    def load(self) -> Any:
        """The object. Raises what its module raises."""
        import importlib

        module, _, name = self.target.partition(":")
        found = importlib.import_module(module)
        return functools.reduce(getattr, filter(None, name.split(".")), found)


class Table:
    """The names of one kind.

    Args:
        kind: what a name is called in messages, such as `command`.
        group: entry points of other packages are those of `vit_jax.GROUP`.
        ours: {name: what it stands for} of this project.
    """

    def __init__(self, kind: str, group: str, ours: Mapping[str, Plugin]):
        self.kind, self.group, self.ours = kind, group, dict(ours)
        TABLES[group] = self

    def __contains__(self, name: object) -> bool:
        return name in self.ours or name in self._others

    def all(self) -> dict[str, Plugin]:
        """{name: what it stands for}, ours first."""
        return {**self.ours, **self._others}

    def load(self, name: str) -> Any:
        """The object of a name that the table contains. Raises UserError if another package's cannot be imported."""
        if name in self.ours:
            return self.ours[name].load()
        plugin = self._others[name]
        subject = f"the {self.kind} {name!r} of the package {plugin.package}"
        if not plugin.target:
            raise UserError(f"the {self.kind} {name!r}", f"is given by {plugin.says}", "remove all but one of them")
        try:
            return plugin.load()
        except UserError:
            raise
        except Exception as error:
            what = f"cannot be imported ({type(error).__name__}: {error})"
            raise UserError(subject, what, "update that package, or remove it") from error

    @functools.cached_property
    def _others(self) -> dict[str, Plugin]:
        """Those of other packages; of a name that several give, one without a target."""
        found: dict[str, Plugin] = {}
        for point in _entry_points().select(group=f"vit_jax.{self.group}"):
            package = point.dist.name if point.dist else "?"
            if point.name in self.ours:
                taken = f"the {self.kind} {point.name!r} of the package {package} is not used: one of ours has its name"
                print(f"note     {taken}", file=sys.stderr)
            elif point.name in found and found[point.name].target != point.value:
                both = f"{found[point.name].says or found[point.name].package} and {package}"
                found[point.name] = Plugin("", both, package)
            else:
                found[point.name] = Plugin(point.value, package=package)
        return found


@functools.cache
def _entry_points() -> Any:
    """Those of all installed packages, read once."""
    from importlib.metadata import entry_points

    return entry_points()


TABLES: dict[str, Table] = {}  # {group: the table}, in the order in which they are defined

HOOKS = Table(
    "hook",
    "hooks",
    {
        "report": Plugin("vit_jax.extras.report.hook:LeaveReport", "writes report.html at the end of a run or a group"),
        "tensorboard": Plugin("vit_jax.extras.loggers.tensorboard:TensorBoard", "writes events for TensorBoard"),
        "wandb": Plugin("vit_jax.extras.loggers.wandb:Wandb", "sends the rows of metrics to Weights & Biases"),
    },
)
SOURCES = Table(
    "source",
    "sources",
    {
        "wds": Plugin("vit_jax.extras.shards.open:open_wds", "tars as webdataset writes them"),
        "parquet": Plugin("vit_jax.extras.shards.open:open_parquet", "parquet files, as datasets writes them"),
        "tfds": Plugin("vit_jax.extras.sets.records:open_set", "prepared sets of TFDS, and official ones by name"),
        # Without a target: what the readers of images, captions and texts open themselves.
        **dict.fromkeys(("folder", "csv", "captions", "coco", "pairs", "tsv", "texts"), Plugin("", "built in")),
    },
)
COMMANDS = Table(
    "command",
    "commands",
    {
        "train": Plugin("vit_jax.commands.train:main", "train a network, or resume a run"),
        "plan": Plugin(
            "vit_jax.extras.plan.command:main",
            "compile a run's steps for a GPU or TPU that need not be there: memory, bytes, kernels, bounds of time",
        ),
        "sweep": Plugin(
            "vit_jax.extras.sweep.command:main",
            "train a run with each combination of several values of its fields, and compare them",
        ),
        "evaluate": Plugin("vit_jax.commands.evaluate:main", "measure a trained network on a split of its data"),
        "compare": Plugin(
            "vit_jax.reports.compare:main", "put runs side by side: where they differ, their results and curves"
        ),
        "report": Plugin(
            "vit_jax.extras.report.command:main",
            "write what a run, or several, left as one page for a browser: curves, errors, attention",
        ),
        "predict": Plugin(
            "vit_jax.commands.predict:main",
            "classify or caption images, or translate sentences, with a trained network",
        ),
        "join": Plugin(
            "vit_jax.commands.join:main", "join what --share of predict or evaluate wrote, of all shares, to one file"
        ),
        "sheet": Plugin("vit_jax.extras.sheet.command:main", "draw what augmentation makes of a preset's images"),
        "plugins": Plugin("vit_jax.commands.plugins:main", "list the features by name, and their packages"),
        "convert": Plugin(
            "convert.__main__:called_by_vit_jax", "convert weights from one layout to another, with proof"
        ),
    },
)
