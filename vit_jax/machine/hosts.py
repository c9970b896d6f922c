"""The processes that train a run together, as one of them sees it: what they tell each other, and their barriers."""

from __future__ import annotations

import atexit
import base64
import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import BUG, CHECK, USER, CheckFailed, Interrupted, UserError, as_user_error
from .launchers import find_gpus, read_place
from .watch import GRACE, Watch

ANSWER = 120.0  # seconds in which process 0 has to answer, and all others to come
NAMED = 10  # seconds in which the first host has to find its own name
HEARTBEAT = 30  # seconds after which JAX itself takes a silent process for dead; the watch is faster
PIECE = 1 << 20
FOR_EVER = 1 << 30  # milliseconds: whoever is waited for is watched
SHOWN = 3


class Hosts:
    """The processes of a run; this is number `index`, and 0 owns its folder. Of a `count` of 1 no method waits."""

    def __init__(self, index: int = 0, count: int = 1, client: Any = None, watch: Watch | None = None):
        self.index, self.count, self._client, self.watch = index, count, client, watch
        self._values = self._barriers = 0  # how many there have been: all processes do the same in the same order

    @property
    def owner(self) -> bool:
        """Whether this is the process that owns the run's folder."""
        return self.index == 0

    @property
    def several(self) -> bool:
        """Whether there are others."""
        return self.count > 1

    def heartbeat(self, step: int | None = None) -> None:
        """Let the others know that this process goes on, and which step it has done, if that is another one."""
        if self.watch:
            self.watch.heartbeat(step)

    def barrier(self) -> None:
        """Wait until all processes are here."""
        if self.several:
            self._barriers += 1
            self._client.wait_at_barrier(f"vit-jax/barrier/{self._barriers}", FOR_EVER)

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
            both = ((n, str(theirs.get(n, "none")), str(found[0].get(n, "none"))) for n in names[:SHOWN])
            listed = [f"{n} {its:.80}, host 0 {first:.80}" for n, its, first in both]
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            return f"hosts differ: host {index} has {'; '.join(listed)}{more}; make them the same on all hosts"
    return ""


def _from_bytes(value: Any) -> Any:
    if not isinstance(value, bytes):
        raise TypeError(f"{type(value).__name__} cannot be shared")
    return {"base64": base64.b64encode(value).decode()}


def _to_bytes(value: dict[str, Any]) -> Any:
    return base64.b64decode(value["base64"]) if value.keys() == {"base64"} else value


_here: Hosts | None = None  # of this process, which can join only once


@contextlib.contextmanager
def join_hosts(text: str, stall_minutes: float = 0.0) -> Iterator[Hosts]:
    """A context in which this process needs the others that train with it; what ends it is told to them."""
    global _here
    if not text:
        _check_alone()
        yield ALONE
        return
    hosts = _here = _here or _begin(text, stall_minutes)
    watch = hosts.watch
    if watch is None:
        yield hosts
        return
    if watch.ending:
        raise UserError("hosts", "the others were informed that this process has failed", "start all processes anew")
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


def _check_alone() -> None:
    """Raise UserError where jax has devices of other processes, as it has after jax.distributed.initialize."""
    if (jax := sys.modules.get("jax")) and jax.distributed.is_initialized():
        from jax._src import distributed

        if (count := distributed.global_state.num_processes) > 1:
            raise UserError(
                f"hosts is empty, but jax.distributed is initialized with {count} processes", remedy='give hosts="auto"'
            )


def _leave(watch: Watch, error: BaseException) -> None:
    """Tell the others why this process ends, and let it end without waiting for them, as JAX would."""
    reason = str(as_user_error(error) or error).partition("\n")[0] or type(error).__name__
    watch.leave({"failed": reason})
    code = CHECK if isinstance(error, CheckFailed) else USER if as_user_error(error) else BUG
    code = error.exit_code if isinstance(error, Interrupted) else code

    def end() -> None:
        if watch.index == 0:  # with this process ends the service without which jax aborts the others
            watch.wait_for_others(2 * GRACE)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)

    atexit.register(end)


def _begin(text: str, stall_minutes: float) -> Hosts:
    import jax

    if jax.distributed.is_initialized():
        return _join_initialized(text, stall_minutes)
    place, gpus = read_place(text), find_gpus()
    if place.count == 1:
        for vendor in ("cuda", "rocm") if gpus is not None else ():  # as jax.distributed.initialize does
            jax.config.update(f"jax_{vendor}_visible_devices", ",".join(map(str, gpus or ())))
        return Hosts()
    watch = Watch(place.index, stall_minutes)
    with _telling(watch):
        # Before jax: where a process is missing it would abort.
        if place.index == 0:
            _check_name(place.address)
            watch.gather(place.port, place.count, ANSWER)
        else:
            watch.join(place.address, place.port, place.count, ANSWER)
        _park_aborts()
        # The signal is ours: with it all processes save the same step.
        jax.config.update("jax_enable_preemption_service", False)
        jax.distributed.initialize(
            f"{place.address}:{place.port}",
            place.count,
            place.index,
            local_device_ids=gpus,
            cluster_detection_method="deactivate",  # which would leave each process one GPU of a machine
            initialization_timeout=int(ANSWER),
            heartbeat_timeout_seconds=HEARTBEAT,
            shutdown_timeout_seconds=HEARTBEAT,
        )
    return _join_group(watch, place.count)


def _join_initialized(text: str, stall_minutes: float) -> Hosts:
    """Join the processes for which jax.distributed was initialized before, as by Ray's JaxTrainer. Raises UserError."""
    from jax._src.distributed import global_state as state

    count, index, client = state.num_processes, state.process_id, state.client
    if text != "auto":
        raise UserError(
            f"hosts is {text!r}, but jax.distributed is initialized already, with {count} processes",
            remedy='give hosts="auto", or leave jax.distributed.initialize out',
        )
    if count == 1 or client is None:
        return Hosts()
    watch, name = Watch(index, stall_minutes), "vit-jax/port"
    with _telling(watch):
        if index == 0:  # jax listens at its own port
            watch.gather(0, count, ANSWER, lambda port: client.key_value_set(name, str(port)))
        else:
            port = int(client.blocking_key_value_get(name, int(1000 * ANSWER)))
            watch.join(str(state.coordinator_address).rpartition(":")[0], port, count, ANSWER)
        _park_aborts()
    return _join_group(watch, count)


@contextlib.contextmanager
def _telling(watch: Watch) -> Iterator[None]:
    """A context in which the processes come together; the others are told why this one does not."""
    try:
        yield
    except (UserError, RuntimeError) as error:
        if "before any JAX calls" in str(error):
            error = UserError(
                "hosts", "jax was used in this process already", "call vit_jax.train(..., hosts=...) first"
            )
        reason = UserError(error.what, remedy=error.remedy) if isinstance(error, UserError) else error
        watch.leave({"failed": str(reason).partition("\n")[0]})
        raise error from None


def _join_group(watch: Watch, count: int) -> Hosts:
    # The client of jax's service, which keeps values and has barriers. Its name is private, as jax makes public only
    # jax.distributed.initialize, is_initialized and shutdown; what jax.experimental.multihost_utils offers in its
    # place (broadcast_one_to_all, sync_global_devices) computes on devices, which must not start before all processes
    # have agreed on their settings.
    from jax._src import distributed

    watch.begin()
    atexit.register(watch.leave, {"done": 1})
    return Hosts(watch.index, count, distributed.global_state.client, watch)


def _check_name(address: str) -> None:
    """Raise UserError where the first host cannot find itself by the name that all are given: jax would wait for it."""
    answers: list[OSError | None] = []

    def find() -> None:
        try:
            socket.getaddrinfo(address, None)
            answers.append(None)
        except OSError as error:
            answers.append(error)

    asking = threading.Thread(target=find, daemon=True)  # a server of names that does not answer is asked for long
    asking.start()
    asking.join(NAMED)
    if not answers or answers[0]:
        why = str(answers[0].strerror or answers[0]) if answers and answers[0] else f"no answer in {NAMED} s"
        raise UserError("hosts", f"names the first host {address}, which it cannot find itself ({why})",
                        "give its number, such as 10.0.0.1, or add the name to its /etc/hosts")  # fmt: skip


def _park_aborts() -> None:
    """Let a thread that aborts this process sleep for six seconds before that: enough to end by a sentence.

    jax aborts a process whose connection to process 0 has ended, just when `Watch` sees that. As the handler of the
    signal SIGABRT, which is number 6, the C function `sleep` is called with 6.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    libc.signal(signal.SIGABRT, ctypes.cast(libc.sleep, ctypes.c_void_p))
