"""An HTTP proxy in front of an S3 server that breaks requests on the wire, as told.

`proxy.next(fault, …)` queues faults for the next requests, `proxy.at_random(rates)` draws them.
`proxy.seen` lists the requests in order: (method, path, fault). The faults:

    500, 503     the answer, and nothing was forwarded
    403, 409     "no", and "conflict, try again", and nothing was forwarded
    reset        nothing was forwarded, the connection is reset
    lost         the request was forwarded and applied, then the connection is reset
    truncated    the answer's body ends halfway
    unsized      the same, of an answer that does not say how long it is
    hang         nothing was forwarded and no answer comes until the client has gone
    stale        of a listing: the newest object is missing (other requests: no fault)
"""

import http.client
import re
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from urllib.parse import urlsplit

_HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive"}
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset


class FaultyProxy(ThreadingHTTPServer):
    """The proxy; `endpoint` is what clients are given."""

    daemon_threads = True

    def __init__(self, target: str, seed: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = urlsplit(target).netloc
        self.endpoint = f"http://127.0.0.1:{self.server_port}"
        self.seen: list[tuple[str, str, str]] = []
        self._queue: deque[str] = deque()
        self._rates: dict[str, float] = {}
        self._random = Random(seed)
        self._lock = threading.Lock()
        self.closing = threading.Event()

    def next(self, *faults: str) -> None:
        """The faults of the next requests, one each; an empty one lets a request pass."""
        self._queue.extend(faults)

    def at_random(self, rates: dict[str, float]) -> None:
        """Draw a fault for every request for which none is queued."""
        self._rates = rates

    def fault_of(self, method: str, path: str) -> str:
        """The fault of the request that has come."""
        with self._lock:
            fault = self._queue.popleft() if self._queue else self._drawn()
            self.seen.append((method, path, fault))
            return fault

    def _drawn(self) -> str:
        drawn = self._random.random()
        for fault, rate in self._rates.items():
            drawn -= rate
            if drawn < 0:
                return fault
        return ""

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that has gone is what this is for."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyProxy

    def _serve(self) -> None:
        body = self._body()
        fault = self.server.fault_of(self.command, self.path)
        if fault.isdecimal():
            self._answer(int(fault), {}, _error(fault))
            return
        if fault == "hang":
            self.server.closing.wait(10)
        if fault in ("hang", "reset"):
            self._reset()
            return
        status, headers, answer = self._forwarded(body)
        if fault == "lost":
            self._reset()
            return
        if fault == "stale" and b"<ListBucketResult" in answer:
            answer = re.sub(rb"(.*)<Contents>.*?</Contents>", rb"\1", answer, flags=re.DOTALL)
        self._answer(status, headers, answer, fault)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve

    def _body(self) -> bytes:
        """The request's body, also of a client that sends it in chunks."""
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass  # trailers
        del self.headers["Transfer-Encoding"]
        self.headers["Content-Length"] = str(len(body))
        return body

    def _forwarded(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        with closing(http.client.HTTPConnection(self.server.target, timeout=120)) as connection:
            # The signature covers the Host header, so it stays the client's.
            connection.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in self.headers.items():
                if name.lower() not in ("connection", "expect"):
                    connection.putheader(name, value)
            connection.endheaders(body)
            reply = connection.getresponse()
            return reply.status, dict(reply.getheaders()), reply.read()

    def _answer(self, status: int, headers: dict[str, str], body: bytes, fault: str = "") -> None:
        is_head = self.command == "HEAD"
        is_cut = fault in ("truncated", "unsized") and not is_head and len(body) > 0
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in _HOP_BY_HOP or is_head:
                self.send_header(name, value)
        if not is_head and fault != "unsized":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not is_head:
            self.wfile.write(body[: len(body) // 2] if is_cut else body)
        if is_cut or fault == "unsized":
            self.close_connection = True

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.connection.close()
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def _error(fault: str) -> bytes:
    codes = {"403": "AccessDenied", "409": "ConditionalRequestConflict"}
    codes |= {"500": "InternalError", "503": "SlowDown"}
    code = codes[fault]
    return f"<Error><Code>{code}</Code><Message>On purpose</Message></Error>".encode()


@contextmanager
def faulty_proxy(target: str, seed: int = 0) -> Iterator[FaultyProxy]:
    """A proxy that serves until the context ends."""
    proxy = FaultyProxy(target, seed)
    thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield proxy
    finally:
        proxy.closing.set()
        proxy.shutdown()
        thread.join()
        proxy.server_close()
