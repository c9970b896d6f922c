"""onnxruntime-web, as npm has installed it: a page contains its script and its WebAssembly."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from vit_jax.errors import UserError

SCRIPT, WASM = "ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm"
INSTALL = "run `npm install --ignore-scripts onnxruntime-web`"
PLACES = ("", "dist", "onnxruntime-web/dist", "node_modules/onnxruntime-web/dist")  # below the path that a user gives


@dataclass(frozen=True)
class Runtime:
    """The files of onnxruntime-web that a page needs."""

    script: Path
    wasm: Path

    @property
    def version(self) -> str:
        """As its script states it."""
        match = re.search(rb"ONNX Runtime Web v(\S+)", self.script.read_bytes()[:500])
        return match[1].decode() if match else "of an unknown version"


def find_runtime(page: str, path: str) -> Runtime:
    """The runtime at or below a path."""
    if not path:
        needs = "runs the network by onnxruntime-web, which is no part of vit-jax"
        raise UserError(page, needs, f"{INSTALL} and give `onnxruntime_web node_modules`")
    for place in PLACES:
        if (script := Path(path, place, SCRIPT)).is_file() and (wasm := script.with_name(WASM)).is_file():
            return Runtime(script, wasm)
    lacks = f"there is no {SCRIPT} with its {WASM}"
    raise UserError(f"onnxruntime_web {path}", lacks, f"{INSTALL} and give its node_modules")
