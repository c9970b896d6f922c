"""The report of a run, or of several, as one file that a browser opens: `vit-jax report RUN [RUN...]`.

It asks the network for nothing: its scripts, styles, charts and images are in it. Jinja escapes every text. The content
security policy of the page allows the two scripts by their digests and nothing else: whatever a class is called,
nothing of it runs. (Styles are allowed inline: BokehJS makes its own.)
"""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import sys
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...config.fields import option
from ...config.flags import parse
from ...errors import DONE, Field, UserError
from ...files.atomic import write_text
from ...files.destination import check_output
from ...files.places import is_kept
from ...files.reading import show_path
from ...files.terminal import printable, run_command, version
from ...reports.comparison import Comparison, Named, gather, listed

if TYPE_CHECKING:
    from .contents import PageContents

FILE = "report.html"
LARGEST = 2_950_000  # letters; without attention it is far below


@dataclass(frozen=True)
class Options:
    """Write the report of a run, or of several runs side by side, as one HTML file."""

    runs: tuple[str, ...] = field(
        metadata={"help": "runs, groups of runs and folders of them, as paths or names inside dir"}
    )
    out: str = option("", f"the file to write; empty: {FILE} in the run's folder, or beside several (then replaced)")
    force: bool = option(False, "overwrite the file of --out if it exists")
    dir: str = option("runs", "folder of all runs")


def report(*names: Named, out: str | os.PathLike[str] = "", dir: str | os.PathLike[str] = "runs") -> Path:
    """Write the report of a run, or of several runs side by side, as one HTML file; returns its path.

    Args:
        names: paths, or names inside `dir`, or lists of them.
        out: the file; empty: report.html in the folder of the one run or group, or in the folder that holds them all.
        dir: the folder of all runs.
    """
    if not (runs := listed(names)):
        raise UserError("runs", "none given", "give the folder of a run, or its name, or several")
    if not out and (kept := [each for each in (*runs, os.fspath(dir)) if is_kept(each)]):
        what = f"is not given, and a report changes nothing at {kept[0]}"
        raise UserError(Field("out"), what, "name a file with `out`")
    found = gather(runs, os.fspath(dir), damaged=True)
    from .contents import contents_of  # Bokeh takes a while to load

    path = Path(out) if out else _place(found) / FILE
    if path.is_symlink():
        raise UserError(show_path(path), "is a link", "remove it, or choose a file with `out`")
    contents = contents_of(found)
    text = page(contents)
    if len(text) > LARGEST and contents.attention:
        contents.attention = None
        contents.missing.append(f"attention is left out: with it this page would have {len(text) / 1e6:.1f} MB")
        text = page(contents)
    text = text.encode("utf-8", "replace").decode()
    try:
        write_text(path, text)
    except OSError as error:
        problem = f"{show_path(path)}: cannot be written ({error.strerror})"
        raise UserError(problem, remedy="choose a file with `out`") from error
    return path


def _place(found: Comparison) -> Path:
    """The folder in which a report belongs."""
    if len(found.lines) > 1:
        return found.folder
    first = found.lines[0]
    return first.members[0].folder.path.parent if first.group else first.members[0].folder.path


def command(arguments: list[str]) -> int:
    """Write the report that arguments ask for."""
    o = parse(Options, arguments, prog="vit-jax report")
    alone = o.runs if len(o.runs) == 1 else ()  # a report of several is not that of one of them
    check_output("out", o.out, o.force, own=[Path(place, run, FILE) for run in alone for place in ("", o.dir)])
    print(f"the report is in {printable(show_path(report(o.runs, out=o.out, dir=o.dir)))}")
    return DONE


@functools.cache
def _file(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


@functools.cache
def _bokeh() -> str:
    """The script of BokehJS, which Bokeh's package carries, without the parts for widgets and tables."""
    import bokeh

    return (resources.files(bokeh) / "server/static/js/bokeh.min.js").read_text(encoding="utf-8")


def policy(*scripts: str) -> str:
    """A content security policy that lets these scripts run, and forbids the page all others and the network."""
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def page(contents: PageContents) -> str:
    """The HTML of a report."""
    from jinja2 import Environment, StrictUndefined
    from jinja2.utils import htmlsafe_json_dumps

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    # Without the comment that names a file of Bokeh's server, which a browser's tools would ask for.
    bokeh = _bokeh().partition("//# sourceMappingURL")[0]
    script = _file("page.js")
    return environment.from_string(_file("page.html")).render(
        c=contents,
        css=_file("page.css"),
        policy=policy(bokeh, script),
        data=htmlsafe_json_dumps(_data(contents), separators=(",", ":")),  # no text in it can end its element
        bokeh=bokeh,
        script=script,
        version=version(),
    )


def _data(contents: PageContents) -> dict[str, Any]:
    """What the page's script draws."""
    classes = contents.classes and {name: contents.classes[name] for name in ("names", "cells")}
    return {
        "charts": [chart.drawn for chart in contents.charts] + ([contents.matrix] if contents.matrix else []),
        "classes": classes,
        "attention": contents.attention and contents.attention["examples"],
        "positions": contents.positions and contents.positions["examples"],
    }


def main() -> int:
    """The command `vit-jax report`; returns the exit code."""
    return run_command(lambda: command(sys.argv[1:]))
