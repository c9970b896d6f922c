"""The watch that processes keep over each other: whoever is lost ends the others at once, with a sentence.

JAX notices a killed process after its heartbeat's timeout, and then aborts without a sentence; one that raises an
exception it does not notice at all while that waits for the others at its end. So each process has a connection to
process 0, over which both tell every second that they live, and how far they are. Nothing here imports jax.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from ..errors import USER, UserError, printable

PING = 1.0  # seconds between two words of a process that lives
SILENT = 11.0  # seconds without a word after which a process counts as lost
GRACE = 3.0  # seconds in which the main thread can end by itself, with its own sentence
LONGEST = 1 << 16  # bytes of a line
AGAIN = "repeat the command on all hosts, it goes on from the last checkpoint"


class Peer:
    """Another process: its connection, and the last that was heard of it."""

    def __init__(self, index: int, name: str, connection: socket.socket):
        self.index, self.name, self.connection = index, name, connection
        self.heard = self.moved = time.monotonic()
        self.moves = self.step = 0
        self.left = False  # it has said that it is done
        self.sending = threading.Lock()

    def __str__(self) -> str:
        return f"host {self.index} ({self.name})"

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; a connection that is broken is noticed by who reads from it."""
        with contextlib.suppress(OSError), self.sending:
            self.connection.sendall(json.dumps(message).encode() + b"\n")


class Watch:
    """The connections of this process: of process 0 to all others, of every other to process 0.

    `moved` tells it how far this process is. Once another is lost, `fault` says so, and the process ends with that
    sentence and exit code 2, after GRACE seconds, if it has not ended by then.
    """

    def __init__(self, index: int, stall_minutes: float):
        self.index, self.stall = index, stall_minutes * 60
        self.name = socket.gethostname()
        self.peers: dict[int, Peer] = {}
        self.fault = ""  # the sentence about a process that was lost
        self.moves = self.step = 0
        self.since = time.monotonic()  # when this process last moved
        self.told: set[tuple[int, int]] = set()  # (index, moves) of the stalls that were reported
        self.working = False  # whether this process needs the others
        self.ending = False  # this process has told the others that it ends
        self.changed = threading.Condition()

    def moved(self, step: int | None) -> None:
        """This process has done a step, or, where that is None, something else that takes its time."""
        self.moves, self.since = self.moves + 1, time.monotonic()
        self.step = self.step if step is None else step

    # Beginning.

    def listen(self, count: int, token: str, seconds: float) -> tuple[int, threading.Thread]:
        """Wait in the background for all others, of `count` processes; returns (the port, the thread that waits)."""
        server = (
            socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
            if (socket.has_dualstack_ipv6())
            else socket.create_server(("", 0))
        )
        thread = threading.Thread(target=self._accept, args=(server, count, token, seconds), daemon=True)
        thread.start()
        return server.getsockname()[1], thread

    def _accept(self, server: socket.socket, count: int, token: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        with server:
            while len(self.peers) < count - 1 and time.monotonic() < deadline:
                server.settimeout(max(0.1, deadline - time.monotonic()))
                with contextlib.suppress(OSError, ValueError):
                    self._admit(server.accept()[0], token)

    def _admit(self, connection: socket.socket, token: str) -> None:
        """Take a connection for that of another process if its first line has the token."""
        connection.settimeout(5)
        reader = connection.makefile("rb")
        hello = json.loads(reader.readline(LONGEST))
        if not hmac.compare_digest(str(hello.get("token")), token):
            connection.close()
            return
        connection.settimeout(None)
        self._add(Peer(int(hello["index"]), str(hello["name"])[:60], connection), reader)

    def connect(self, address: str, port: int, token: str, seconds: float) -> None:
        """Connect to process 0. Raises UserError."""
        try:
            connection = socket.create_connection((address.strip("[]"), port), timeout=seconds)
        except OSError as error:
            raise UserError(
                f"hosts: process 0 cannot be reached at {address}:{port} ({error.strerror or error}); "
                "let the hosts connect to each other on all ports"
            ) from error
        connection.settimeout(None)
        peer = Peer(0, address.strip("[]"), connection)
        peer.send({"token": token, "index": self.index, "name": self.name})
        self._add(peer, connection.makefile("rb"))

    def _add(self, peer: Peer, reader: Any) -> None:
        peer.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self.changed:
            self.peers[peer.index] = peer
            self.changed.notify_all()
        threading.Thread(target=self._read, args=(peer, reader), daemon=True).start()

    def begin(self) -> None:
        """Tell the others from now on that this process lives, and notice who does not."""
        threading.Thread(target=self._tick, daemon=True).start()

    # While the processes work.

    def _read(self, peer: Peer, reader: Any) -> None:
        """Hear a peer until its connection ends."""
        with contextlib.suppress(OSError, ValueError):
            while line := reader.readline(LONGEST):
                self._hear(peer, json.loads(line))
        if not (peer.left or self.ending):
            self._lose(f"{peer} was lost at step {peer.step}: its process has ended; {AGAIN}")

    def _hear(self, peer: Peer, message: dict[str, Any]) -> None:
        peer.heard = time.monotonic()
        if "moves" in message and message["moves"] != peer.moves:
            peer.moves, peer.step, peer.moved = message["moves"], message["step"], time.monotonic()
        if "done" in message:
            peer.left = True
            if self.working:
                self._lose(f"{peer} has ended before this one did; give all hosts the same command")
        if "lost" in message:
            self._lose(message["lost"], relay=False)
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
                    self._lose(f"{silent}; {AGAIN}")
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

    def _lose(self, sentence: str, relay: bool = True) -> None:
        """Let this process end, and at process 0 all others, because one was lost."""
        with self.changed:
            if self.fault or self.ending:
                return
            self.fault = printable(sentence)
            self.changed.notify_all()
        if relay:
            for peer in list(self.peers.values()):
                peer.send({"lost": sentence})
        threading.Thread(target=self._end, daemon=True).start()

    def _end(self) -> None:
        """End the process, whose main thread may wait for the lost one for ever."""
        with self.changed:
            if self.changed.wait_for(lambda: self.ending, GRACE):
                return
        with contextlib.suppress(OSError, ValueError):
            print("vit-jax: error: " + self.fault, file=sys.stderr, flush=True)
        os._exit(USER)

    # Ending.

    def wait_for_fault(self, seconds: float) -> str:
        """`fault`, for which it waits so long if there is none yet."""
        with self.changed:
            self.changed.wait_for(lambda: self.fault, seconds)
        return self.fault

    def leave(self, message: Mapping[str, Any]) -> None:
        """Tell the others that this process ends: {"done": 1}, or {"failed": why}. May be called again."""
        with self.changed:
            again, self.ending = self.ending, True
            self.changed.notify_all()
        for peer in [] if again else list(self.peers.values()):
            peer.send(message)
