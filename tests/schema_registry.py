"""A schema registry in a thread: Confluent's HTTP API for schemas by id and by subject."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeRegistry:
    """What it answers can be changed while it runs."""

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        """By id, as `/schemas/ids/ID` answers."""
        self.subjects: dict[tuple[str, str], int] = {}
        """(Subject, version) → id."""
        self.asked: list[str] = []
        self.login = ""
        """Whoever does not have it is refused."""
        self.status = 200
        """Any other is answered to everything."""
        self.body: bytes | None = None
        """Answered in place of a schema."""
        self.url = ""

    def register(
        self, schema_id: int, schema: Any, subject: str = "", version: int = 1, **more: Any
    ) -> None:
        self.schemas[schema_id] = {"schema": json.dumps(schema), **more}
        for named in (str(version), "latest") if subject else ():
            self.subjects[subject, named] = schema_id

    def answer(self, path: str, authorization: str) -> tuple[int, bytes]:
        self.asked.append(path)
        wanted = "Basic " + base64.b64encode(self.login.encode()).decode()
        if self.login and authorization != wanted:
            return 401, b'{"error_code": 40101, "message": "Unauthorized"}'
        if self.status != 200 or self.body is not None:
            return self.status, self.body or b"trouble"
        _, kind, name, *rest = path.split("/")
        schema_id = int(rest[0]) if kind == "schemas" else self.subjects.get((name, rest[1]))
        if schema_id not in self.schemas:
            return 404, b'{"error_code": 40403, "message": "Schema not found"}'
        return 200, json.dumps({"id": schema_id, **self.schemas[schema_id]}).encode()


@contextmanager
def schema_registry() -> Iterator[FakeRegistry]:
    fake = FakeRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = fake.answer(self.path, self.headers.get("Authorization", ""))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
