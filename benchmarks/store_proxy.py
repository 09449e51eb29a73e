"""An S3 server's bad days: a proxy that delays, refuses, forgets and cuts by chance.

Of each hundred requests so many are slow, answered 503 without being passed on, passed on with
their reply lost, or cut off in the middle of their reply. Nothing while `share` is 0.
"""

import http.client
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

FAULTS = ("slow", "unavailable", "reply lost", "reply cut")
LONGEST_DELAY_S = 2.0
_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive", "date", "server"}


class StoreProxy:
    """Passes requests on to the server at `endpoint`; `share` (0 to 1) of them meet a fault."""

    def __init__(self, endpoint: str, seed: int) -> None:
        self.share = 0.0
        self.counts: Counter[str] = Counter()
        self.noise = random.Random(seed)
        self.upstream = urlsplit(endpoint).netloc
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                proxy.pass_on(self)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def fault(self) -> str:
        """What happens to the next request; empty: nothing."""
        chosen = self.noise.choice(FAULTS) if self.noise.random() < self.share else ""
        self.counts[chosen or "served"] += 1
        return chosen

    def pass_on(self, request: BaseHTTPRequestHandler) -> None:
        """Answer one request, with a fault or without."""
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        fault = self.fault()
        if fault == "slow":
            time.sleep(self.noise.uniform(0, LONGEST_DELAY_S))
        if fault == "unavailable":
            _reply(request, 503, {}, b"")
            return
        upstream = http.client.HTTPConnection(self.upstream, timeout=30)
        try:
            upstream.request(request.command, request.path, body, dict(request.headers))
            answer = upstream.getresponse()
            content = answer.read()
        finally:
            upstream.close()
        if fault == "reply lost":
            request.close_connection = True
            return
        headers = {k: v for k, v in answer.getheaders() if k.lower() not in _HOP}
        if request.command == "HEAD":
            headers["Content-Length"] = answer.getheader("Content-Length") or "0"
        _reply(request, answer.status, headers, content, cut=fault == "reply cut")


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed in the middle of a request is what this is for."""


def _reply(
    request: BaseHTTPRequestHandler,
    status: int,
    headers: dict[str, str],
    content: bytes,
    *,
    cut: bool = False,
) -> None:
    request.send_response(status)
    for name, value in headers.items():
        request.send_header(name, value)
    if "Content-Length" not in headers:
        request.send_header("Content-Length", str(len(content)))
    request.end_headers()
    request.wfile.write(content[: len(content) // 2] if cut else content)
    request.close_connection = request.close_connection or cut


@contextmanager
def store_proxy(endpoint: str, seed: int) -> Iterator[StoreProxy]:
    """A proxy in a thread of its own."""
    proxy = StoreProxy(endpoint, seed)
    thread = threading.Thread(target=proxy.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.server.shutdown()
        proxy.server.server_close()
        thread.join()
