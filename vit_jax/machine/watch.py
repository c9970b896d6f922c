"""The watch that processes keep over each other: whoever is lost ends the others at once, with a sentence.

JAX notices a killed process after its heartbeat's timeout, and then aborts without a sentence; one that raises an
exception it does not notice at all while that waits for the others at its end. So each process has a connection to
process 0, over which both tell every second that they live, and how far they are. Nothing here imports jax.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import USER, UserError
from ..files.terminal import printable

PING = 1.0  # seconds
SILENT = 11.0  # seconds without a word after which a process counts as lost
GRACE = 3.0  # seconds in which the main thread can end by itself, with its own sentence
LONGEST = 1 << 16
AGAIN = "repeat the command on all hosts, it goes on from the last checkpoint"


class Peer:
    """Another process: its connection, and the last that was heard of it."""

    def __init__(self, index: int, name: str, connection: socket.socket):
        self.index, self.name, self.connection = index, name, connection
        self.heard = self.moved = time.monotonic()
        self.moves = self.step = 0
        self.left = False  # it has said that it ends
        self.gone = False  # its connection has ended
        self.sending = threading.Lock()

    def __str__(self) -> str:
        return f"host {self.index} ({self.name})"

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; a connection that is broken is noticed by who reads from it."""
        with contextlib.suppress(OSError), self.sending:
            self.connection.sendall(json.dumps(message).encode() + b"\n")


class Watch:
    """The connections of this process: of process 0 to all others, of every other to process 0.

    `heartbeat` tells it how far this process is. Once another is lost, `fault` says so, and the process ends with that
    sentence and exit code 2, after GRACE seconds, if it has not ended by then.
    """

    def __init__(self, index: int, stall_minutes: float):
        self.index, self.stall = index, stall_minutes * 60
        self.name = socket.gethostname()
        self.peers: dict[int, Peer] = {}
        self.fault = ""
        self.moves = self.step = 0
        self.since = time.monotonic()  # when this process last moved
        self.told: set[tuple[int, int]] = set()  # (index, moves) of the stalls that were reported
        self.working = False
        self.ending = False
        self.changed = threading.Condition()
        self.exit = os._exit  # which ends the process whatever its main thread waits for

    def heartbeat(self, step: int | None) -> None:
        """This process has done a step, or, where that is None, something else that takes its time."""
        self.moves, self.since = self.moves + 1, time.monotonic()
        self.step = self.step if step is None else step

    def gather(
        self, port: int, count: int, seconds: float, announce: Callable[[int], None] = lambda port: None
    ) -> None:
        """At process 0: wait for all others, and tell them to go on."""
        deadline = time.monotonic() + seconds
        with _listening(port) as server:
            announce(server.getsockname()[1])
            while len(self.peers) < count - 1:
                server.settimeout(max(0.01, deadline - time.monotonic()))
                try:
                    self._admit(server.accept()[0], count)
                except TimeoutError:
                    missing = ", ".join(map(str, sorted({*range(1, count)} - self.peers.keys())))
                    raise UserError(
                        "hosts",
                        f"of {count} processes those with INDEX {missing} have not come in {seconds:.0f} s",
                        "start all at the same time",
                    ) from None
        for peer in self.peers.values():
            peer.send({"go": 1})

    def _admit(self, connection: socket.socket, count: int) -> None:
        """Take a connection for that of another process if its first line says so. Raises UserError."""
        connection.settimeout(5)
        reader = connection.makefile("rb")
        try:
            hello = json.loads(reader.readline(LONGEST))["vit-jax"]
            index, name, wanted = int(hello["index"]), str(hello["name"])[:60], int(hello["count"])
        except (OSError, ValueError, KeyError, TypeError):  # somebody else's
            connection.close()
            return
        connection.settimeout(None)
        peer, what, remedy = Peer(index, name, connection), "", ""
        if wanted != count:
            what, remedy = f"process 0 has COUNT {count}, but {name} {wanted}", "give all the same"
        elif index in self.peers or not 0 < index < count:
            what, remedy = f"{name} has INDEX {index}, as another process has", "give each its own"
        if what:
            peer.send({"failed": f"{what}; {remedy}"})
            connection.close()
            raise UserError("hosts", what, remedy)
        self._add(peer, reader)

    def join(self, address: str, port: int, count: int, seconds: float) -> None:
        """At any other process: connect to process 0, and wait until that tells it to go on."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                connection = socket.create_connection((address.strip("[]"), port), timeout=5)
                break
            except OSError as error:
                if time.monotonic() > deadline or isinstance(error, socket.gaierror):
                    raise UserError(
                        "hosts",
                        f"nothing answers at {address}:{port} ({error.strerror or error})",
                        "start the process with INDEX 0 there, and let the others reach that port",
                    ) from error
            time.sleep(0.2)
        peer = Peer(0, address.strip("[]"), connection)
        peer.send({"vit-jax": {"index": self.index, "count": count, "name": self.name}})
        connection.settimeout(seconds + 10)  # process 0 waits so long for the others
        reader = connection.makefile("rb")
        try:
            told = json.loads(reader.readline(LONGEST))
        except (OSError, ValueError):
            told = {}
        if "go" not in told:
            reason = told.get("failed", "its process has ended")
            raise UserError("hosts", f"process 0, at {address}:{port}, does not begin: {reason}")
        connection.settimeout(None)
        self._add(peer, reader)

    def _add(self, peer: Peer, reader: Any) -> None:
        peer.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self.changed:
            self.peers[peer.index] = peer
            self.changed.notify_all()
        threading.Thread(target=self._read, args=(peer, reader), daemon=True).start()

    def begin(self) -> None:
        """Tell the others from now on that this process lives, and notice who does not."""
        threading.Thread(target=self._tick, daemon=True).start()

    def _read(self, peer: Peer, reader: Any) -> None:
        with contextlib.suppress(OSError, ValueError):
            while line := reader.readline(LONGEST):
                self._hear(peer, json.loads(line))
        with self.changed:
            peer.gone = True
            self.changed.notify_all()
        if not (peer.left or self.ending):
            self._lose(f"{peer} was lost at step {peer.step}: its process has ended; {AGAIN}", grace=0)

    def _hear(self, peer: Peer, message: dict[str, Any]) -> None:
        peer.heard = time.monotonic()
        if "moves" in message and message["moves"] != peer.moves:
            peer.moves, peer.step, peer.moved = message["moves"], message["step"], time.monotonic()
        if "done" in message:
            peer.left = True
            if self.working:
                self._lose(f"{peer} has ended before this one did; give all hosts the same command")
        if "lost" in message:
            self._lose(message["lost"], message["grace"], relay=False)
        if "failed" in message:
            peer.left = True
            self._lose(f"{peer} has ended: {message['failed']}")

    def _tick(self) -> None:
        """Every second: send a word, and look for who has been silent, and at process 0 for who stands still."""
        last = time.monotonic()
        while not self.ending:
            now = time.monotonic()
            slept, last = now - last, now
            for peer in list(self.peers.values()):
                if slept > SILENT / 2:  # this process was stopped itself, and has heard nobody meanwhile
                    peer.heard = now
                peer.send({"moves": self.moves, "step": self.step})
                if not peer.left and now - peer.heard > SILENT:
                    silent = f"{peer} was lost at step {peer.step}: it has been silent for {now - peer.heard:.0f} s"
                    self._lose(f"{silent}; {AGAIN}", grace=0)
            if self.index == 0 and self.stall:
                self._name_stalled(now)
            time.sleep(PING)

    def _name_stalled(self, now: float) -> None:
        """Print which process stands still, once each time: of several the one that has done least."""
        since = {peer.index: (peer.moves, now - peer.moved, str(peer)) for peer in list(self.peers.values())}
        since[0] = (self.moves, now - self.since, f"host 0 ({self.name})")
        index = min(since, key=lambda each: since[each][0])
        moves, seconds, name = since[index]
        if seconds < self.stall or (index, moves) in self.told or not moves:
            return
        self.told.add((index, moves))
        step = self.step if index == 0 else self.peers[index].step
        print(
            f"note     {name} has stood still at step {step} for {seconds / 60:.1f} minutes; the others wait for it",
            file=sys.stderr,
            flush=True,
        )

    def _lose(self, sentence: str, grace: float = GRACE, relay: bool = True) -> None:
        """Let this process end, and at process 0 all others, because one was lost; so soon unless it ends by itself."""
        with self.changed:
            if self.fault or self.ending:
                return
            self.fault = printable(sentence)
            self.changed.notify_all()
        if relay:
            for peer in list(self.peers.values()):
                peer.send({"lost": sentence, "grace": grace})
        threading.Thread(target=self._end, args=(grace,), daemon=True).start()

    def _end(self, grace: float) -> None:
        """End the process, whose main thread may wait for the lost one for ever."""
        with self.changed:
            if self.changed.wait_for(lambda: self.ending, grace):
                return
        with contextlib.suppress(OSError, ValueError):
            print("vit-jax: error: " + self.fault, file=sys.stderr, flush=True)
        self.exit(USER)

    def wait_for_fault(self, seconds: float) -> str:
        """`fault`, for which it waits so long if there is none yet."""
        with self.changed:
            self.changed.wait_for(lambda: self.fault, seconds)
        return self.fault

    def wait_for_others(self, seconds: float) -> None:
        """At process 0: wait until all others have ended, but not longer."""
        with self.changed:
            self.changed.wait_for(lambda: all(peer.gone for peer in self.peers.values()), seconds)

    def leave(self, message: Mapping[str, Any]) -> None:
        """Tell the others that this process ends: {"done": 1}, or {"failed": why}. May be called again."""
        with self.changed:
            again, self.ending = self.ending, True
            self.changed.notify_all()
        for peer in [] if again else list(self.peers.values()):
            peer.send(message)


def _listening(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # IPv6 may be switched off
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    try:
        return socket.create_server(("", port))
    except OSError as error:
        raise UserError(
            "hosts", f"this process, the first, cannot listen at port {port} ({error.strerror})", "give another port"
        ) from error
