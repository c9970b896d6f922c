"""A report as one file of HTML, which asks the network for nothing: its scripts, styles, charts and images are in it.

Jinja escapes every text. The content security policy of the page allows the two scripts by their digests and nothing
else: whatever a class is called, nothing of it runs. (Styles are allowed inline: BokehJS makes its own.)
"""

from __future__ import annotations

import base64
import functools
import hashlib
from importlib import resources
from typing import Any

from ...files.terminal import version
from .contents import Contents


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


def page(contents: Contents) -> str:
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


def _data(contents: Contents) -> dict[str, Any]:
    """What the page's script draws."""
    classes = contents.classes and {name: contents.classes[name] for name in ("names", "cells")}
    return {
        "charts": [chart.drawn for chart in contents.charts] + ([contents.matrix] if contents.matrix else []),
        "classes": classes,
        "attention": contents.attention and contents.attention["examples"],
        "positions": contents.positions and contents.positions["examples"],
    }
