"""The processes that train a run together, as one of them sees it: what they tell each other, and where they meet."""

from __future__ import annotations

import atexit
import base64
import contextlib
import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import BUG, CHECK, USER, CheckFailed, Interrupted, UserError, as_user_error
from .place import FORMS, Place, read_place
from .watch import Watch

ANSWER = 120.0  # seconds in which process 0 has to answer, and all others to come
HEARTBEAT = 30  # seconds after which JAX itself takes a silent process for dead; the watch is faster
PIECE = 1 << 20  # characters of a value that are sent at once
FOR_EVER = 1 << 30  # milliseconds: whoever is waited for is watched
SHOWN = 3  # most differences that are listed


class Hosts:
    """The processes of a run, "hosts", of which this is number `index`. Process 0 is the one that owns its folder.

    With a `count` of 1 there is only this process, and all methods return at once.
    """

    def __init__(self, index: int = 0, count: int = 1, client: Any = None, watch: Watch | None = None):
        self.index, self.count, self._client, self.watch = index, count, client, watch
        self._values = self._meetings = 0  # how many there have been: all processes do the same in the same order

    @property
    def owner(self) -> bool:
        """Whether this is the process that owns the run's folder."""
        return self.index == 0

    @property
    def several(self) -> bool:
        """Whether there are others."""
        return self.count > 1

    def moved(self, step: int | None = None) -> None:
        """Let the others know that this process goes on, and which step it has done, if that is another one."""
        if self.watch:
            self.watch.moved(step)

    def meet(self) -> None:
        """Wait until all processes are here."""
        if self.several:
            self._meetings += 1
            self._client.wait_at_barrier(f"vit-jax/meeting/{self._meetings}", FOR_EVER)

    def share(self, value: Any = None) -> Any:
        """The JSON value that process 0 gives, in all processes; bytes in it are possible as values of dicts."""
        if not self.several:
            return value
        self._values += 1
        name = f"vit-jax/value/{self._values}"
        if not self.owner:
            return self._get(name)
        self._set(name, value)
        return value

    def all(self, value: Any) -> list[Any]:
        """The JSON values that all processes give, in order, at process 0; [] in the others."""
        self._values += 1
        name = f"vit-jax/value/{self._values}"
        if not self.owner:
            self._set(f"{name}/{self.index}", value)
            return []
        own = json.loads(json.dumps(value))  # as those of the others
        return [own, *(self._get(f"{name}/{index}") for index in range(1, self.count))]

    def _set(self, name: str, value: Any) -> None:
        text = json.dumps(value, default=_from_bytes)
        pieces = [text[at : at + PIECE] for at in range(0, len(text), PIECE)]
        for number, piece in enumerate(pieces):
            self._client.key_value_set(f"{name}/piece/{number}", piece)
        self._client.key_value_set(f"{name}/pieces", str(len(pieces)))

    def _get(self, name: str) -> Any:
        pieces = [self._wait_for(f"{name}/piece/{i}") for i in range(int(self._wait_for(f"{name}/pieces")))]
        return json.loads("".join(pieces), object_hook=_to_bytes)

    def _wait_for(self, key: str) -> str:
        """A text that another process sets, or has set, however long that takes; signals are heard meanwhile."""
        while True:
            with contextlib.suppress(RuntimeError):  # of jax: the time is over
                return str(self._client.blocking_key_value_get(key, 1000))
            if self.watch and self.watch.fault:
                raise UserError(self.watch.fault)

    def compare(self, what: Mapping[str, Any]) -> None:
        """Raise UserError, in all processes, unless all have the same {name: JSON value}; it says who has what."""
        if not self.several:
            return
        found = self.all(dict(what))
        if fault := self.share(differing(found)):
            raise UserError(fault)


ALONE = Hosts()


def differing(found: list[dict[str, Any]]) -> str:
    """A sentence on the first process whose {name: value} differ from those of process 0; empty if none does."""
    for index, theirs in enumerate(found):
        names = [n for n in {**found[0], **theirs} if theirs.get(n) != found[0].get(n)]
        if names:
            listed = [f"{n} {_told(theirs, n)}, host 0 {_told(found[0], n)}" for n in names[:SHOWN]]
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            return f"hosts differ: host {index} has {'; '.join(listed)}{more}; make them the same on all hosts"
    return ""


def _told(values: Mapping[str, Any], name: str) -> str:
    return str(values[name])[:80] if name in values else "none"


def _from_bytes(value: Any) -> Any:
    if not isinstance(value, bytes):
        raise TypeError(f"{type(value).__name__} cannot be shared")
    return {"base64": base64.b64encode(value).decode()}


def _to_bytes(value: dict[str, Any]) -> Any:
    return base64.b64decode(value["base64"]) if value.keys() == {"base64"} else value


_here: Hosts | None = None  # of this process, which can join only once


@contextlib.contextmanager
def joined(text: str, stall_minutes: float = 0.0) -> Iterator[Hosts]:
    """The processes that `--hosts` names, within the block in which this one needs the others; ALONE if it is empty.

    Whatever ends the block is told to the others. Raises UserError where they do not come together, and in place of an
    error that comes of the loss of another process.
    """
    global _here
    if not text:
        yield ALONE
        return
    hosts = _here = _here or _begin(text, stall_minutes)
    watch = hosts.watch
    if watch is None:
        yield hosts
        return
    watch.working = True
    try:
        yield hosts
    except BaseException as error:
        expected = isinstance(error, KeyboardInterrupt | CheckFailed) or as_user_error(error) is not None
        # An error of the network comes of the loss of a peer, which the watch is about to notice.
        fault = "" if expected else watch.wait_for_fault(5)
        ended = UserError(fault) if fault else error
        _leave(watch, ended)
        if fault:
            raise ended from error
        raise
    watch.working = False


def _leave(watch: Watch, error: BaseException) -> None:
    """Tell the others why this process ends, and let it end without waiting for them, as JAX would."""
    reason = str(as_user_error(error) or error).partition("\n")[0] or type(error).__name__
    watch.leave({"failed": reason})
    code = CHECK if isinstance(error, CheckFailed) else USER if as_user_error(error) else BUG
    code = error.exit_code if isinstance(error, Interrupted) else code

    def end() -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)

    atexit.register(end)


def _begin(text: str, stall_minutes: float) -> Hosts:
    """Join the processes that `--hosts` names. Raises UserError."""
    import jax

    place = read_place(text)
    if place and place.count == 1:
        return Hosts()
    # The signal is ours: with it all processes save the same step.
    jax.config.update("jax_enable_preemption_service", False)
    if place:
        _check_address(place)
    given: dict[str, Any] = (
        {"coordinator_address": f"{place.address}:{place.port}", "num_processes": place.count} if place else {}
    )
    given |= {"process_id": place.index} if place else {}
    try:
        jax.distributed.initialize(
            **given,
            initialization_timeout=int(ANSWER),
            heartbeat_timeout_seconds=HEARTBEAT,
            shutdown_timeout_seconds=HEARTBEAT,
        )
    except Exception as error:
        raise _not_joined(text, place, error) from error
    from jax._src import distributed  # its client, which keeps values and has barriers, has no public name

    state = distributed.global_state
    if state.num_processes == 1:
        return Hosts()
    watch = Watch(state.process_id, stall_minutes)
    hosts = Hosts(state.process_id, state.num_processes, state.client, watch)
    if hosts.owner:
        token = secrets.token_hex(16)
        port, thread = watch.listen(hosts.count, token, ANSWER)
        hosts.share({"port": port, "token": token})
        thread.join()
        if missing := sorted({*range(1, hosts.count)} - watch.peers.keys()):
            raise UserError(
                f"hosts is {text}: host {missing[0]} cannot reach this one at port {port}; "
                "let the hosts connect to each other on all ports"
            )
    else:
        there = hosts.share()
        watch.connect(str(state.coordinator_address).rpartition(":")[0], there["port"], there["token"], ANSWER)
    watch.begin()
    atexit.register(watch.leave, {"done": 1})
    return hosts


def _check_address(place: Place) -> None:
    """Raise UserError where process 0 cannot listen at its port, or where nothing answers there.

    JAX would abort the process in either case.
    """
    where = f"{place.address}:{place.port}"
    if place.index == 0:
        try:
            socket.create_server(("", place.port)).close()
        except OSError as error:
            raise UserError(
                f"hosts: this process, the first, cannot listen at port {place.port} ({error.strerror}); give another"
            ) from error
        return
    deadline = time.monotonic() + ANSWER
    while True:
        try:
            socket.create_connection((place.address.strip("[]"), place.port), timeout=5).close()
            return
        except OSError as error:
            if time.monotonic() > deadline or isinstance(error, socket.gaierror):
                raise UserError(
                    f"hosts: nothing answers at {where} ({error.strerror or error}); start the process with INDEX 0 "
                    "there, and let the others reach that port"
                ) from error
        time.sleep(0.5)


def _not_joined(text: str, place: Place | None, error: Exception) -> UserError:
    """The UserError for what JAX raises where processes do not come together."""
    if "backend" in str(error) and "initialize" in str(error):
        return UserError("hosts: jax has started in this process already; call vit_jax.train(..., hosts=...) before")
    reason = str(error).partition("\n")[0][:200]
    if place is None:
        return UserError(
            f"hosts is auto, but jax finds no Slurm, TPU pod or Kubernetes job here ({reason}); give {FORMS}"
        )
    return UserError(f"hosts is {text}: the processes have not come together in {ANSWER:.0f} s ({reason}); start all")
