"""What servers on this machine have in common that stand for those of others."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    """Answers in silence, also to whoever is gone by then."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # whoever asked was killed
            super().handle()

    def hang_up(self) -> None:
        self.close_connection = True
        self.connection.close()

    def send(self, status: int, body: bytes, sent: int | None = None, **headers: str) -> None:
        """Send an answer, or the first bytes of it; in names of headers `_` stands for `-`."""
        self.send_response(status)
        for key, text in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(key.replace("_", "-"), text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:sent])

    def asked_range(self, size: int) -> tuple[int, int] | None:
        """The bytes of `size` that are asked for: from, up to; None for all."""
        asked = self.headers.get("Range")
        if not asked:
            return None
        first, _, last = asked.removeprefix("bytes=").partition("-")
        start = int(first) if first else max(size - int(last), 0)
        return start, min(int(last) + 1, size) if first and last else size


@contextlib.contextmanager
def listening(handler: type[Handler], **attributes: object) -> Iterator[str]:
    """The address at which a handler with these attributes answers."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (handler,), attributes))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
