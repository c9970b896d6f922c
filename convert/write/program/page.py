"""The two graphs of a page that runs a network in a browser, and the text of the page around them.

`prepare` makes of pixels uint8 [B, h, w, C] of any size the images that the network takes, `network` gives their
outputs: so the page can cover parts of a prepared image and run the network again.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from ...layout import Json
from .interface import PIXELS, Interface
from .onnx_arrays import Array, OnnxArrays
from .preprocess import as_network_takes

if TYPE_CHECKING:
    import onnx_ir as ir

    from ..runtime import Runtime

PREPARE, NETWORK = "prepare.onnx", "network.onnx"


def write_graphs(model: ir.Model, interface: Interface, folder: Path) -> Json:
    """Write both graphs, that of the network as it was traced, as ONNX files; returns what a runtime needs."""
    import onnx_ir as ir

    assert interface.preprocess is not None
    ir.save(model, folder / NETWORK)
    xp = OnnxArrays("preprocess")
    pixels = ir.Value(name=PIXELS, shape=ir.Shape(interface.axes), type=ir.TensorType(ir.DataType.UINT8))
    images = as_network_takes(xp, Array(xp, pixels, "uint8"), interface.preprocess).value
    images.shape = model.graph.inputs[0].shape
    graph = ir.Graph([pixels], [images], nodes=xp.nodes, opset_imports={"": interface.opset}, name="prepare")
    ir.save(ir.Model(graph, ir_version=model.ir_version), folder / PREPARE)
    return {"opset": interface.opset, "ir_version": model.ir_version}


def compose(title: str, about: str, details: list[str], data: Json, folder: Path, runtime: Runtime) -> str:
    """The page: it holds all that it needs, and its content security policy lets nothing else in."""
    css, script = _file("page.css"), _file("page.js")
    values = {
        "policy": f"default-src 'none'; img-src blob:; style-src {_digest(css)}; "
        f"script-src {_digest(script)} blob: 'wasm-unsafe-eval'",
        "title": html.escape(title),
        "about": html.escape(about),
        "details": "\n".join(f"<p>{html.escape(each)}</p>" for each in details),
        "footer": html.escape("This file is complete in itself: it asks the internet for nothing."),
        "css": css,
        "script": script,
        "data": json.dumps(data, ensure_ascii=False).replace("<", "\\u003c"),
        "prepare": _packed((folder / PREPARE).read_bytes()),
        "network": _packed((folder / NETWORK).read_bytes()),
        "runtime": _packed(runtime.script.read_bytes()),
        "wasm": _packed(runtime.wasm.read_bytes()),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], _file("page.html"))


def _file(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _packed(content: bytes) -> str:
    """Bytes as text: gzip in base64."""
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()


def _digest(text: str) -> str:
    """How a content security policy names the one style or script with this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
