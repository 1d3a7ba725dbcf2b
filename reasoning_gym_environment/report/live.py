"""Serves the page of a run that continues: `reasoning-gym-env report RUN --live`.

    browser ── GET / ──> the page, made again if the files have changed
            ── GET /version ──> a text that changes with the files

The server listens on this machine only. It refuses requests for another host name, so that a page of another site
cannot read the results through a name that it points at this machine.
"""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock

from ..errors import EnvironmentSetupError
from .load import all_inputs
from .page import LIVE_SCRIPT, policy

HOST = "127.0.0.1"

REST = 4.0
"""After making a page, the server keeps it for at least this many times the seconds that it took."""

LEAST_REST_S = 3.0
"""The server keeps each page for this time, so that a browser learns the version of the page that it got."""


class LivePage:
    """The page of some paths, and its version. `make` returns the page; its EnvironmentSetupError becomes a page."""

    def __init__(self, paths: Sequence[Path], make: Callable[[], str]) -> None:
        self._paths = paths
        self._make = make
        self._lock = Lock()
        self._page = b""
        self._version = ""
        self._next = 0.0

    def version(self) -> str:
        """The version of the page that the next request gets."""
        if time.monotonic() < self._next:
            return self._version
        return version_of(self._paths)

    def page(self) -> bytes:
        """The page of the present files, or the last page if it is too early for another."""
        with self._lock:
            version = self.version()
            if version != self._version:
                started = time.monotonic()
                self._page = self._made().encode("utf-8", "replace")
                self._version = version
                ended = time.monotonic()
                self._next = ended + max(LEAST_REST_S, REST * (ended - started))
            return self._page

    def _made(self) -> str:
        try:
            return self._make()
        except EnvironmentSetupError as error:
            return waiting_page(str(error))


def version_of(paths: Sequence[Path]) -> str:
    """The number of files, their size and their last change, as text."""
    known = [file.stat() for file in all_inputs(paths) if file.exists()]
    newest = max((state.st_mtime_ns for state in known), default=0)
    return f"{len(known)}-{sum(state.st_size for state in known)}-{newest}"


def waiting_page(reason: str) -> str:
    """A page that says why there is nothing to show yet, and asks again."""
    script = LIVE_SCRIPT.read_text(encoding="utf-8")
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy([script], is_live=True)}">'
        f"<title>waiting</title><body><h1>Waiting for the first results</h1><p>{html.escape(reason)}</p>"
        f'<p id="news" role="status"></p><script>{script}</script></body></html>'
    )


def serve(page: LivePage, port: int) -> ThreadingHTTPServer:
    """A server on this port of this machine, whose `serve_forever` the caller starts. Raises OSError."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers.get("Host") not in hosts:
                self._send(403, b"This address belongs to another host.")
            elif self.path == "/":
                self._send(200, page.page(), "text/html; charset=utf-8")
            elif self.path == "/version":
                self._send(200, page.version().encode())
            else:
                self._send(404, b"There is only one page.")

        def _send(self, status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """The terminal shows the address only."""

    server = ThreadingHTTPServer((HOST, port), Handler)
    hosts = {f"{name}:{server.server_port}" for name in (HOST, "localhost")}
    return server
