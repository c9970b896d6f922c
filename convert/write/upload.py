"""hf://owner/name as a target: what the hub is asked before anything is converted, and the upload as one commit."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vit_jax.errors import Interrupted, UserError, install

from ..containers.answers import bounded_answers
from ..containers.hub import OTHER_SHAPE, SECONDS

PREFIX = "hf://"
OWN = ".gitattributes"  # the hub's own file in each repository
README = "README.md"
LISTED = 3  # files that a message lists


@dataclass(frozen=True)
class Repository:
    """A repository of the Hugging Face Hub that may be written to, or made."""

    name: str  # owner/name
    private: bool
    exists: bool = False
    files: tuple[str, ...] = ()  # that it holds
    head: str | None = None  # its newest commit

    @property
    def address(self) -> str:
        """What the user calls it."""
        return f"{PREFIX}{self.name}"


def repository(address: str, public: bool, force: bool) -> Repository:
    """A repository of the Hugging Face Hub, asked about there; nothing is made or changed."""
    name = address.removeprefix(PREFIX)
    if not address.startswith(PREFIX) or name.count("/") != 1 or not all(name.split("/")):
        raise UserError(address, "is not the address of a repository", "write hf://owner/name")
    hub = _library(address)
    try:
        hub.utils.validate_repo_id(name)
    except hub.errors.HFValidationError as error:
        raise UserError(
            address,
            "is no name for a repository",
            "take letters, digits, '-', '_' and '.', without '--', '..', '-' or '.' at an end, and '.git'",
        ) from error
    try:
        if not hub.get_token():
            raise UserError(address, "there is no token to write with", "log in with `hf auth login`, or set HF_TOKEN")
        with bounded_answers(hub, address):
            found = hub.HfApi().model_info(name, timeout=SECONDS)
        if not all(isinstance(each.rfilename, str) for each in found.siblings or ()):
            raise TypeError("its files have no names")
    except UserError:
        raise
    except OTHER_SHAPE as error:
        what = f"the hub's answer is not as huggingface_hub expects it ({type(error).__name__})"
        raise UserError(address, what, "check HF_ENDPOINT") from error
    except Exception as error:  # its class depends on the library that sends the requests
        status, what, remedy = _fault(hub, error)
        if status == 404:
            return Repository(name, private=not public)
        raise UserError(address, what, f"{remedy}, and repeat the command") from error
    files = tuple(each.rfilename for each in found.siblings or ())
    _check_free(address, bool(found.private), public, () if force else files)
    return Repository(name, not public, True, files, found.sha)


def _check_free(address: str, private: bool, public: bool, files: Sequence[str]) -> None:
    """Raise UserError where a repository is seen by others than it is to be, or holds files of somebody else."""
    if private == public:
        is_, remedy = ("private", "leave --public out") if public else ("public", "add --public")
        raise UserError(address, f"exists and is {is_}", f"{remedy}, or choose another name")
    if held := sorted({*files} - {OWN}):
        more = f" and {len(held) - LISTED} more" if len(held) > LISTED else ""
        raise UserError(
            address,
            f"exists and holds {', '.join(held[:LISTED])}{more}",
            "choose another name, or replace all that it holds with --force (its history keeps it)",
        )


def upload(to: Repository, folder: Path, files: Sequence[Path], message: str) -> str:
    """Upload files as one commit. What else the repository holds is removed in the same commit."""
    hub = _library(to.address)
    hub.utils.logging.set_verbosity_error()  # else it tells of each attempt
    if not sys.stderr.isatty():
        hub.utils.disable_progress_bars()
    api, made = hub.HfApi(), False
    page = f"{api.endpoint}/{to.name}"
    try:
        _check_card(hub, to, folder / README)
        if not to.exists:
            api.create_repo(to.name, private=to.private)
            made = True
        paths = {path.relative_to(folder).as_posix(): path for path in files}
        added = [hub.CommitOperationAdd(name, path) for name, path in paths.items()]
        removed = [hub.CommitOperationDelete(name) for name in to.files if name not in paths and name != OWN]
        api.create_commit(to.name, [*added, *removed], commit_message=message, parent_commit=to.head)
    except UserError:
        raise
    except KeyboardInterrupt as stop:
        if not made:
            raise
        broken = f"interrupted: the repository {to.name} was made, and the upload into it broke off"
        signal = "SIGTERM" if isinstance(stop, Interrupted) else "SIGINT"
        raise Interrupted(f"{broken}; repeat the command, or remove it at {page}/settings", signal) from None
    except Exception as error:  # as above
        status, what, remedy = _fault(hub, error)
        if made:
            what += f", and the repository {to.name} was made before that"
            remedy = f"remove it at {page}/settings, or {remedy}"
        elif status == 409 and not to.exists:
            what = "exists by now, or cannot be seen with this token"
            remedy = "choose another name, or look at what it holds"
        raise UserError(to.address, what, f"{remedy}, and repeat the command") from error
    return page


def _check_card(hub: Any, to: Repository, card: Path) -> None:
    """Raise UserError where the hub does not accept the model card: before a repository is made for it."""
    try:
        hub.ModelCard.load(card).validate()
    except hub.errors.HfHubHTTPError:
        raise
    except ValueError as error:
        raise UserError(
            to.address,
            f"the hub does not accept the model card ({_short(error)}), so nothing was uploaded",
            "correct --license, or leave it out",
        ) from error


def _fault(hub: Any, error: BaseException) -> tuple[int, str, str]:
    """(the status with which the hub answered, 0 where it did not; what is wrong, and what to do, a clause each)."""
    while error.__cause__ is not None and not isinstance(error, hub.errors.HfHubHTTPError):
        error = error.__cause__
    if not isinstance(error, hub.errors.HfHubHTTPError):
        return 0, f"the hub is out of reach ({_short(error)})", "check the network"
    status, endpoint = error.response.status_code, hub.HfApi().endpoint
    known = {
        401: ("the hub does not accept the token", "log in again with `hf auth login`, or set HF_TOKEN"),
        403: (
            "the token has no right to write there",
            f"choose an owner that it may write for, or a token with write access ({endpoint}/settings/tokens)",
        ),
        409: ("the hub is at work on it", "wait a minute"),
        412: ("it was changed meanwhile", "look at what it holds"),
        429: ("the hub takes no more requests for now", "wait a while"),
    }
    what, remedy = known.get(status, (f"the hub answers {status}", "wait a while"))
    said = _short(error.server_message or "")
    return status, f"{what} ({said})" if said else what, remedy


def _short(text: object) -> str:
    return " ".join(str(text).split())[:200] or type(text).__name__


def _library(address: str) -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError as error:
        raise UserError(address, "needs huggingface_hub", f"run `{install('hub')}`, or give a folder here") from error
    return huggingface_hub
