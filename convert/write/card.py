"""The model card of an uploaded network: README.md with YAML in front, of what is known of it and nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vit_jax.config.run import NO_DATA, RunConfig
from vit_jax.files.terminal import version
from vit_jax.kinds.table import EMBEDDING, class_of
from vit_jax.runs import Run
from vit_jax.tasks.table import task_spec

from ..containers.folder import read_json
from ..containers.hub import ADDRESS
from ..containers.run_folder import run_of
from ..containers.source import Source
from ..dialects.own import own_record
from ..layout import Json
from ..plan.plan import Plan

DATASETS = {  # {data.source of a run: the name of that set on the hub}
    "cifar10": "uoft-cs/cifar10", "cifar100": "uoft-cs/cifar100", "mnist": "ylecun/mnist",
    "fashion_mnist": "zalandoresearch/fashion_mnist",
}  # fmt: skip
METRICS = {  # {metric of a task: its name on the hub}
    "accuracy": "accuracy", "f1_macro": "f1", "exact_match": "exact_match", "bleu": "bleu", "chrf": "chrf",
    "perplexity": "perplexity",
}  # fmt: skip
WEIGHTS = {"model": "raw", "ema": "ema"}  # {label of a run's weights: what its summary calls them}
Results = dict[str, Mapping[str, float]]  # {split: {metric: value}}


def card(plan: Plan, src: str, name: str, folder: Path, certificate: Json, license: str) -> str:
    """README.md of a repository."""
    import huggingface_hub

    run = _trained_by(plan.reading.source)
    bases = {text: each for text in (src, *((run.init, run.init_encoder) if run else ())) if (each := _on_hub(text))}
    measured = {} if run is None or plan.adaptations or plan.dtype is not None else results(plan, run)
    library, opening = _opened_by(folder, name)
    metrics = [theirs for ours, theirs in METRICS.items() if any(ours in values for values in measured.values())]
    tags = dict.fromkeys(("vit-jax", plan.config.name.lower(), plan.layout.dialect))
    data = huggingface_hub.ModelCardData(
        library_name=library,
        license=license or None,
        base_model=[*dict.fromkeys(bases.values())] or None,
        datasets=[DATASETS[run.data.source]] if run and run.data.source in DATASETS else None,
        metrics=metrics or None,
        pipeline_tag=pipeline(plan, run) or None,
        tags=[*tags],
    )
    parts = [about(plan, name), _use(opening, name), origin(plan, src, bases, run, measured), _proof(certificate)]
    return f"---\n{data.to_yaml()}\n---\n\n" + "\n\n".join(parts) + "\n"


def _trained_by(source: Source) -> RunConfig | None:
    """The run whose weights a source holds: a run's folder or a file of torch_ref.train; None for other sources."""
    record = source.record or own_record(source.tree)
    run = run_of(record["config"], source.path) if record else None
    return run if run and run.data.source != NO_DATA else None


def _on_hub(text: str) -> str:
    """owner/name of an address hf://owner/name; empty of other texts."""
    match = re.fullmatch(ADDRESS, text)
    return match[1] if match else ""


def pipeline(plan: Plan, run: RunConfig | None) -> str:
    """What the hub calls the task of the network; empty where that is not known."""
    if plan.facts.outputs.kind == EMBEDDING:
        return "image-feature-extraction"
    return plan.config.pipeline() or (task_spec(run.task).pipeline if run else "")


def _opened_by(folder: Path, name: str) -> tuple[str, str]:
    """(the library whose config.json a folder has, the Python by which it opens the folder from the hub)."""
    file = folder / "config.json"
    stated = read_json(str(file)) if file.is_file() else {}
    if "architecture" in stated:
        return "timm", f'import timm\n\nmodel = timm.create_model("hf-hub:{name}", pretrained=True)'
    if classes := stated.get("architectures"):
        loads = {"model": classes[0]}
        loads |= {"processor": "AutoImageProcessor"} if (folder / "preprocessor_config.json").is_file() else {}
        loads |= {"tokenizer": "AutoTokenizer"} if (folder / "tokenizer_config.json").is_file() else {}
        lines = [f'{variable} = {each}.from_pretrained("{name}")' for variable, each in loads.items()]
        return "transformers", "\n".join([f"from transformers import {', '.join(sorted(loads.values()))}", "", *lines])
    return "vit-jax", ""


def results(plan: Plan, run: RunConfig) -> Results:
    """What a run measured of the very weights that go along, on each split; empty where it measured others."""
    source = plan.reading.source
    summary = (Run(source.path).summary() if source.record else None) or {}
    best, kind = summary.get("best") or {}, WEIGHTS.get(plan.reading.label)
    found: Results = {}
    if (source.step, kind) == (best.get("step"), best.get("weights")):
        found["validation"] = best
        found |= {split: each["best"] for split, each in summary.items() if isinstance(each, dict) and "best" in each}
    if source.step == summary.get("step"):
        columns = {"raw": ("raw", "last"), "ema": ("ema", "last_ema")}.get(kind or "", ())
        for split, each in summary.items():
            for column in columns:
                if isinstance(each, dict) and isinstance(each.get(column), dict):
                    found[split] = each[column]
    names = task_spec(run.task).main_metrics
    return {split: {name: values[name] for name in names if name in values} for split, values in found.items()}


# ------------------------------------------------------------------------------------------ its sections


def about(plan: Plan, name: str) -> str:
    """What the network is, and the images that it takes."""
    what = plan.config.describe()[0]
    count = plan.config.parameter_count()
    text = f"# {name.partition('/')[2]}\n\n{what}; {count:,} parameters, in the layout `{plan.layout.name}`."
    if images := plan.facts.preprocess:
        h, w = images["image"]
        mean, std = (f"{name} {', '.join(f'{x:.4g}' for x in images[name])}" for name in ("mean", "std"))
        text += f" Images: {h} x {w} x {images['channels']}, pixels in 0..1, normalised with {mean} and {std}."
    if (kind := plan.facts.outputs.kind) not in ("", "class"):
        text += f" Its outputs are {class_of(kind).says}."
    return text + f" Written by vit-jax {version()}."


def _use(opening: str, name: str) -> str:
    """How its own library opens it, and ours."""
    ours = f'import vit_jax\n\nnetwork = vit_jax.load("hf://{name}")'
    return "\n\n".join(["## Use", *(f"```python\n{code}\n```" for code in (opening, ours) if code)])


def origin(plan: Plan, src: str, bases: Mapping[str, str], run: RunConfig | None, measured: Results) -> str:
    """Where the weights come from, how they were changed, and what their run measured of them."""
    lines = ["## Origin", ""]
    for text, base in bases.items():
        how = "Converted from" if text == src else "Training began with the weights of"
        lines.append(f"{how} [{base}](https://huggingface.co/{base}).")
    if run:
        known = re.fullmatch(r"\w+", run.data.source) and run.data.source != run.data.given
        lines.append(f"Trained by vit-jax{f' on `{run.data.source}`' if known else ''}.")
    if plan.reading.source.step is not None:
        averaged = "averaged weights" if plan.reading.label == "ema" else "weights"
        lines.append(f"These are the {averaged} of step {plan.reading.source.step}.")
    lines += [f"Adapted afterwards: {each.says}." for each in plan.adaptations]
    lines += [f"Rounded to {plan.dtype.name}."] if plan.dtype is not None else []
    if len(lines) == 2:
        lines.append(f"Converted from weights in the layout {plan.reading.layout.name}.")
    return "\n".join(lines + (["", table(measured, run)] if run and any(measured.values()) else []))


def table(measured: Results, run: RunConfig) -> str:
    """The results as a table, a row for each split."""
    names = {
        name: word
        for name, word in task_spec(run.task).main_metrics.items()
        if any(name in values for values in measured.values())
    }
    rows = [["split", *names.values()], ["---"] * (len(names) + 1)]
    for split, values in measured.items():
        rows.append([split, *(f"{values[name]:.4f}" if name in values else "" for name in names)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _proof(certificate: Json) -> str:
    """The certificate in short."""
    lines = [
        "## Verification", "",
        f"Verdict: {certificate['verdict']}. Before the upload, these files were compared with those that they were "
        "converted from; [certificate.json](certificate.json) names both by SHA-256.",
        "", "| compared | largest difference |", "| --- | --- |",
    ]  # fmt: skip
    lines += [f"| {what} | {_number(difference)} |" for what, difference in certificate["differences"].items()]
    lines += ["", *(f"- {note}" for note in certificate["notes"])] if certificate["notes"] else []
    versions = ", ".join(f"{name} {number}" for name, number in certificate["versions"].items())
    return "\n".join([*lines, "", f"Versions: {versions}."])


def _number(value: Any) -> str:
    return "not finite" if value is None else f"{value:.1e}"
