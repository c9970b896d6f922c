"""hf://owner/name[@revision][/file]: files of the Hugging Face Hub, through huggingface_hub where it is installed."""

from __future__ import annotations

import json
import os
import re
from typing import Any

from vit_jax.errors import UserError, install

from .answers import bounded_answers
from .folder import INDEX, NO_WEIGHTS
from .kinds import SUFFIXES
from .source import CARRIED_SUFFIX

ADDRESS = r"hf://([\w.-]+/[\w.-]+)(?:@([^@/]+))?(?:/(.+))?"
SECONDS = 10  # without an answer, until the hub counts as out of reach
# What huggingface_hub raises of an answer that is not as it expects.
OTHER_SHAPE = (KeyError, TypeError, AttributeError, RecursionError, json.JSONDecodeError)
SHARD = r"-\d+-of-\d+\."
DOWNLOAD = "or download the files and give their folder"
BESIDE = ("*.json", "*.spm", "merges.txt", "vocab.txt", "*.bpe.model", "spiece.model")  # configs and tokenizers


def fetch(address: str, file: str = "") -> str:
    """Download JSON files, those of tokenizers and one set of weights."""
    match = re.fullmatch(ADDRESS, address)
    if not match or ".." in address.split("/"):
        raise UserError(
            address, "is not an address", "write hf://owner/name, hf://owner/name@revision or hf://owner/name/file"
        )
    repository, revision, inner = match.groups()
    try:
        import huggingface_hub.utils  # which names its modules only once they are imported
    except ImportError as error:
        raise UserError(address, "needs huggingface_hub", f"run `{install('hub')}`, {DOWNLOAD}") from error
    names: list[str] | None = []
    try:
        with bounded_answers(huggingface_hub, address):
            names = _names(huggingface_hub, repository, revision)
            wanted = inner or file or _weights(names or [], address)
            folder = huggingface_hub.snapshot_download(
                repository,
                revision=revision,
                allow_patterns=[*BESIDE, *_patterns(wanted)],
                local_files_only=names is None,
            )
    except UserError:
        raise
    except OTHER_SHAPE as error:
        what = f"the hub's answer is not as huggingface_hub expects it ({type(error).__name__})"
        raise UserError(address, what, f"check HF_ENDPOINT, {DOWNLOAD}") from error
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        reason = "the hub is out of reach, and the cache does not have it" if names is None else reason
        raise UserError(
            address, f"cannot be downloaded ({reason})", f"check its name and the network, {DOWNLOAD}"
        ) from error
    return os.path.join(folder, inner) if inner else folder


def _names(hub: Any, repository: str, revision: str | None) -> list[str] | None:
    """The names of a repository's files; None where the hub is out of reach and the cache has to do."""
    try:
        return [
            file.rfilename for file in hub.model_info(repository, revision=revision, timeout=SECONDS).siblings or ()
        ]
    except (hub.errors.HfHubHTTPError, hub.errors.HFValidationError, UserError, *OTHER_SHAPE):
        raise
    except Exception:  # the class depends on the library that sends its requests
        return None


def _weights(names: list[str], address: str) -> str:
    """The only file of weights in a repository, or the index of its shards; "" where there is none."""
    found = [
        n
        for n in names
        if "/" not in n
        and _suffix(n.removesuffix(INDEX)) in SUFFIXES
        and n not in NO_WEIGHTS
        and not n.endswith(CARRIED_SUFFIX)
        and not re.search(SHARD, n)
    ]
    if len(found) > 1:
        raise UserError(
            address, f"has several sets of weights, {', '.join(sorted(found))}", "name one of them with `file`"
        )
    return "".join(found)


def _patterns(wanted: str) -> list[str]:
    """Patterns of the files to download: one file, an index with its shards, or any weights."""
    if not wanted:
        return [f"*{suffix}" for suffix in SUFFIXES]
    stem, suffix = os.path.splitext(wanted.removesuffix(INDEX))
    return [wanted, f"{stem}-*{suffix}" if wanted.endswith(INDEX) else f"{wanted}{CARRIED_SUFFIX}"]


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1].lower()
