"""A key-value store over HTTP for tests: PUT, POST, GET and DELETE, with faults on demand."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class KeyValueServer(ThreadingHTTPServer):
    """Keeps bodies by path. Faults are taken from the front of `faults`, one a request.

    A fault is a status to answer without doing anything, or `lost`: done, and the connection closed
    without an answer.
    """

    daemon_threads = True
    # A burst of connections must not be refused.
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content: dict[str, bytes] = {}
        self.requests: list[tuple[str, str, str | None]] = []
        """Method, path and idempotency key of every request, as they came."""
        self.faults: list[int | str] = []
        self.fences: dict[str, int] = {}
        """Log → the highest fence that was seen; a request with a lower one is answered 412."""
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is not worth a word."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Small answers at once: an answer that waits for its body's packet costs 40 ms.
    wbufsize = -1
    server: KeyValueServer

    def do_PUT(self) -> None:
        size = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(size)
        if len(body) < size:  # its sender died in the middle
            self.close_connection = True
            return
        with self.server.lock:
            self.server.requests.append(
                (self.command, self.path, self.headers.get("idempotency-key"))
            )
            fault = self.server.faults.pop(0) if self.server.faults else None
            if self._is_fenced():
                fault = 412
            if fault in (None, "lost"):
                self._do(body)
            found = self.server.content.get(self.path)
        if fault == "lost":
            self.close_connection = True
            return
        if isinstance(fault, int):
            self._answer(fault, b'{"error": "as planned"}')
        elif self.command == "GET":
            self._answer(404 if found is None else 200, found or b"")
        else:
            self._answer(200, b"{}")

    do_POST = do_GET = do_DELETE = do_PUT

    def _is_fenced(self) -> bool:
        fence, _, log = self.headers.get("catchwater-fence", "0").partition("; log=")
        newest = self.server.fences.get(log, 0)
        self.server.fences[log] = max(int(fence), newest)
        return int(fence) < newest

    def _do(self, body: bytes) -> None:
        if self.command == "PUT":
            self.server.content[self.path] = body
        elif self.command == "POST":
            self.server.content[f"{self.path}#{len(self.server.content)}"] = body
        elif self.command == "DELETE":
            self.server.content.pop(self.path, None)

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Quiet."""


@contextmanager
def key_value_server() -> Iterator[KeyValueServer]:
    """A running server on loopback."""
    server = KeyValueServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
