"""What names stand for: features of ours and of other packages, each an object of a module, imported when first used.

Another package gives a name by an entry point of the table's group, such as `vit_jax.commands`; the packages that are
installed are looked through once, and only where a name is unknown or all are listed. A name of ours wins.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from .errors import UserError

OURS = "vit-jax"
T = TypeVar("T")


def raised_in(error: BaseException) -> str:
    """The file and the line of the code that raised an error."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{os.path.basename(last.filename)}, line {last.lineno}"


class Plugin(NamedTuple):
    """What a name stands for."""

    target: Any  # "module:object", "module", or the object itself
    says: str = ""  # one sentence, for lists
    package: str = OURS

    def load(self) -> Any:
        """The object. Raises what its module raises."""
        if not isinstance(self.target, str):
            return self.target
        module, _, name = self.target.partition(":")
        return functools.reduce(getattr, filter(None, name.split(".")), importlib.import_module(module))


class Table(Mapping[str, T]):
    """The names of one kind and what they stand for; a name of another package that cannot be loaded is left out.

    Args:
        kind: what a name is called in messages, such as `command`.
        group: entry points of other packages are those of `vit_jax.GROUP`.
        ours: {name: what it stands for} of this project.
        built_in: other names of ours, which no package can have.
        base: the class that each name stands for a subclass of, and whose `check_members` raises TypeError where one
            lacks what it has to define; None: a name may stand for anything.
    """

    def __init__(
        self, kind: str, group: str, ours: Mapping[str, Plugin], built_in: Sequence[str] = (), base: Any = None
    ):
        self.kind, self.group, self.ours, self.built_in, self.base = kind, group, dict(ours), built_in, base
        self._left_out: set[str] = set()

    def plugins(self) -> dict[str, Plugin]:
        """{name: what it stands for} of all packages, ours first; nothing is loaded."""
        return {**self.ours, **self.others}

    def __getitem__(self, name: str) -> T:
        """What a name stands for. Raises UserError where another package's cannot be loaded."""
        if name in self.ours:
            return self.ours[name].load()  # type: ignore[no-any-return]
        plugin = self.others[name]
        with self.blaming(name, "cannot be loaded"):
            found = plugin.load()
            if self.base is not None:
                if not (isinstance(found, type) and issubclass(found, self.base)):
                    raise TypeError(f"it is no subclass of {self.base.__name__}")
                cast(Any, found).check_members()
            return found  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def blaming(self, name: str, what: str = "failed") -> Iterator[None]:
        """A context in which what another package raises becomes a UserError that names it."""
        plugin = self.ours.get(name) or self.others[name]
        try:
            yield
        except (Exception, SystemExit) as error:
            if plugin.package == OURS or isinstance(error, UserError):
                raise
            subject = f"the {self.kind} {name!r} of the package {plugin.package}"
            why = f"{what} ({type(error).__name__}: {error})"
            remedy = f"update that package, or remove it (raised in {raised_in(error)})"
            raise UserError(subject, why, remedy) from error

    def __contains__(self, name: object) -> bool:
        return name in self.ours or name in self.others

    def __iter__(self) -> Iterator[str]:
        yield from self.ours
        for name in self.others:
            try:
                self[name]
            except UserError as error:
                if name not in self._left_out:
                    print(f"note     {error}; it is left out", file=sys.stderr)
                self._left_out.add(name)
            else:
                yield name

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @functools.cached_property
    def others(self) -> dict[str, Plugin]:
        """Those of other packages, without those whose name is taken."""
        found: dict[str, Plugin] = {}
        for point in sorted(_entry_points().select(group=f"vit_jax.{self.group}"), key=str):
            package = point.dist.name if point.dist else "?"
            ours = point.name in self.ours or point.name in self.built_in
            owner = OURS if ours else found[point.name].package if point.name in found else package
            if owner != package:
                taken = f"the {self.kind} {point.name!r} of the package {package} is not used: {owner} has that name"
                print(f"note     {taken}", file=sys.stderr)
            else:
                found[point.name] = Plugin(f"{point.module}:{point.attr}", package=package)
        return found


@functools.cache
def _entry_points() -> Any:
    """Those of all installed packages, read once."""
    from importlib.metadata import entry_points

    return entry_points()


LAYOUTS: Table[Any] = Table("layout", "layouts", {})  # ours are those of convert/dialects

HOOKS: Table[Any] = Table(
    "hook",
    "hooks",
    {
        "report": Plugin("vit_jax.extras.report.hook:LeaveReport", "writes report.html at the end of a run or a group"),
        "tensorboard": Plugin("vit_jax.extras.loggers:TensorBoard", "writes events for TensorBoard"),
        "wandb": Plugin("vit_jax.extras.loggers:Wandb", "sends the rows of metrics to Weights & Biases"),
    },
)
CAPABILITIES: Table[Any] = Table(
    "capability",
    "capabilities",
    {"explain": Plugin("vit_jax.extras.explain.capability:Explain", "what of an input counted for its answer")},
)
# What reads inputs of `predict` that are neither images nor texts, by their kind.
READERS = {"vectors": Plugin("vit_jax.extras.vectors.vectors:vectors_in")}
# What makes source and target of a text alone, by `data.corrupt`.
CORRUPTIONS = {"spans": Plugin("vit_jax.extras.denoise:corruption_of")}
# What draws a figure of a run anew from what a hook has kept of it, by the figure's name.
REDRAWN = {"confusion": Plugin("vit_jax.extras.report.keep:kept_confusion")}
SOURCES: Table[Any] = Table(
    "source",
    "sources",
    {
        "wds": Plugin("vit_jax.extras.shards.samples:open_wds", "tars as webdataset writes them"),
        "parquet": Plugin("vit_jax.extras.shards.samples:open_parquet", "parquet files, as datasets writes them"),
        "tfds": Plugin("vit_jax.extras.sets.records:open_set", "prepared sets of TFDS, and official ones by name"),
    },
    built_in=("folder", "csv", "captions", "coco", "pairs", "tsv", "texts"),
)
COMMANDS: Table[Callable[[], int]] = Table(
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
            "vit_jax.commands.share:main", "join what --share of predict or evaluate wrote, of all shares, to one file"
        ),
        "sheet": Plugin("vit_jax.extras.sheet:main", "draw what augmentation makes of a preset's images"),
        "plugins": Plugin("vit_jax.commands.cli:list_plugins", "list the features by name, and their packages"),
        "convert": Plugin(
            "convert.__main__:called_by_vit_jax", "convert weights from one layout to another, with proof"
        ),
    },
)
STORES: Table[Any] = Table(
    "store",
    "stores",
    {
        "s3": Plugin("vit_jax.extras.stores.objects:ObjectStore", "S3, and what speaks like it"),
        "gs": Plugin("vit_jax.extras.stores.objects:ObjectStore", "Google Cloud Storage"),
        "https": Plugin("vit_jax.extras.stores.objects:ObjectStore", "a plain server, which is only read"),
        "http": Plugin("vit_jax.extras.stores.objects:ObjectStore", "a plain server, which is only read"),
        "folder": Plugin("vit_jax.extras.stores.folder:Folder", "a path whose files are read by ranges, as shards are"),
    },
)
# What is done alike with the stores of all schemes: runs are kept in them, and folders of data are copied from them.
KEPT = Plugin("vit_jax.extras.stores.copies")
