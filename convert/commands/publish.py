"""`python -m convert SRC hf://owner/name`: written into a temporary folder, verified there, uploaded as one commit."""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from pathlib import Path

from vit_jax.errors import DONE, CheckFailed, UserError
from vit_jax.files.atomic import write_json
from vit_jax.files.terminal import print_line

from ..layout import Json
from ..plan.plan import Plan
from ..recognise.layouts import find
from ..write.card import card
from ..write.programs import is_named
from ..write.tokenizer import tokenizer_with_weights
from ..write.upload import README, repository, upload
from ..write.write import Written, goal_of, holds_training
from .convert import begun_from, check_words, run

REMOTE = re.compile(r"(hf|https?):")  # a target that is meant to be a repository, whether well written or not
CERTIFICATE = "certificate.json"
LICENSE = r"[a-z0-9][a-z0-9.-]*"  # the hub says which there are


def publish(arguments: argparse.Namespace) -> int:
    """Convert SRC, verify it and upload it with a model card to DST, hf://owner/name."""
    began = time.monotonic()
    if arguments.license and not re.fullmatch(LICENSE, arguments.license):
        raise UserError(
            f"--license {arguments.license}", "give the hub's name of a licence: apache-2.0, mit, cc-by-4.0"
        )
    if is_named(arguments.to):
        what = f"its folder is a program, and {arguments.dst} takes weights that are compared with their source"
        raise UserError(f"--to {arguments.to}", what, "write the folder here, and upload it yourself")
    with tempfile.TemporaryDirectory(prefix="vit-jax-") as place:
        folder = Path(place) / "model"
        layout = find(arguments.to or begun_from(arguments.src) or "vit-jax", "to")[-1]
        # Of our own layout a file: the checkpoints of a run's folder are not read through the links of the hub's cache.
        here = str(folder / "model.safetensors" if layout.dialect == "vit-jax" else folder)
        bare = arguments.weights_only or holds_training(goal_of(here, layout), layout)  # without an optimizer
        other = {"dst": here, "license": "", "public": False, "verify": False, "weights_only": bare}
        local = argparse.Namespace(**{**vars(arguments), **other})
        check_words(local)
        to = repository(arguments.dst, arguments.public, arguments.force)

        def finish(plan: Plan, written: Written) -> None:
            certificate = _verify(plan, written, to.address)
            write_json(folder / CERTIFICATE, certificate)
            if layout.dialect == "vit-jax":
                _add_tokenizer(plan, folder)
            text = card(plan, arguments.src, to.name, folder, certificate, arguments.license)
            (folder / README).write_text(text, encoding="utf-8")
            for note in written.notes:
                print_line(f"note      {note}")
            if not arguments.license:
                print_line("note      no licence is given; --license NAME puts one into the model card")
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            page = upload(to, folder, files, f"{plan.layout.name}, converted by vit-jax")
            size, seconds = sum(path.stat().st_size for path in files), time.monotonic() - began
            what = f"{'private' if to.private else 'public'}, {size / 1e6:,.1f} MB in one commit, {seconds:.1f} s"
            print_line(f"uploaded  {page}: {plan.layout.name}, {what}")
            print_line("\n".join(f"          {path.relative_to(folder)}" for path in files))

        run(local, finish)
    return DONE


def _verify(plan: Plan, written: Written, address: str) -> Json:
    """The certificate of what was written, after a comparison with its source. Raises CheckFailed where they differ."""
    from ..verify import compare_plan

    report = compare_plan(plan, written)
    report.paths = (plan.reading.path, address)
    print_line(report.text())
    if not report.same:
        raise CheckFailed(f"{address}: {report.verdict}; nothing was uploaded")
    return report.certificate()


def _add_tokenizer(plan: Plan, folder: Path) -> None:
    """Put the files of a tokenizer beside weights of our own layout, from where `vit_jax.load` opens them."""
    for name, content in (plan.reading.source.beside() or tokenizer_with_weights(plan)).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
