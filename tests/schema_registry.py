"""A schema registry in a thread: Confluent's HTTP API for schemas by id and by subject.

It answers as Confluent's does to what its own serializers and ours ask: schemas by id, versions of
a subject, lookups, registrations, a subject's compatibility. What is compatible it is told.
"""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


class FakeRegistry:
    """What it answers can be changed while it runs."""

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        """By id, as `/schemas/ids/ID` answers."""
        self.subjects: dict[str, dict[int, int]] = {}
        """Subject → version → id."""
        self.levels: dict[str, str] = {}
        """Subject → its compatibility; else the registry's own, BACKWARD."""
        self.incompatible: list[str] = []
        """Why the next schema does not fit its subject; empty: it does."""
        self.asked: list[str] = []
        self.login = ""
        """Whoever does not have it is refused."""
        self.status = 200
        """Any other is answered to everything."""
        self.body: bytes | None = None
        """Answered in place of a schema."""
        self.literal = False
        """Schemas are held against each other as texts, unless it is asked to normalize them."""
        self.half = False
        """Only half of each answer is sent."""
        self.pause = threading.Event()
        """Not set: no answer."""
        self.pause.set()
        self.url = ""

    def register(
        self, schema_id: int, schema: Any, subject: str = "", version: int = 1, **more: Any
    ) -> None:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        self.schemas[schema_id] = {"schema": text, **more}
        if subject:
            self.subjects.setdefault(subject, {})[version] = schema_id

    def answer(
        self, method: str, target: str, authorization: str, body: bytes
    ) -> tuple[int, bytes]:
        self.asked.append(target if method == "GET" else f"{method} {target}")
        self.pause.wait(30)
        wanted = "Basic " + base64.b64encode(self.login.encode()).decode()
        if self.login and authorization != wanted:
            return 401, b'{"error_code": 40101, "message": "Unauthorized"}'
        if self.status != 200 or self.body is not None:
            return self.status, self.body or b"trouble"
        path = [unquote(each) for each in urlsplit(target).path.strip("/").split("/")]
        asked = {name: of[0] for name, of in parse_qs(urlsplit(target).query).items()}
        try:
            found = self._found(method, path, asked, json.loads(body) if body else {})
        except LookupError as problem:
            code, words = problem.args
            return code // 100, json.dumps({"error_code": code, "message": words}).encode()
        return 200, json.dumps(found).encode()

    def _found(
        self, method: str, path: list[str], asked: dict[str, str], body: dict[str, Any]
    ) -> Any:
        match method, path:
            case "GET", ["schemas", "ids", schema_id]:
                return self._schema(int(schema_id), asked)
            case "GET", ["schemas", "ids", schema_id, "versions"]:
                self._schema(int(schema_id), asked)
                return [
                    {"subject": subject, "version": version}
                    for subject, versions in self.subjects.items()
                    for version, each in versions.items()
                    if each == int(schema_id)
                ]
            case "GET", ["subjects", subject, "versions", version]:
                versions = self._versions(subject)
                number = max(versions) if version == "latest" else int(version)
                schema_id = versions[number]
                of = {"subject": subject, "version": number, "id": schema_id}
                return of | self._schema(schema_id, asked)
            case "GET", ["subjects", subject, "versions"]:
                return sorted(self._versions(subject))
            case "GET", ["config", subject]:
                return {"compatibilityLevel": self.levels.get(subject, "BACKWARD")}
            case "POST", ["subjects", subject]:
                return self._looked_up(subject, body, "normalize" in asked)
            case "POST", ["subjects", subject, "versions"]:
                return self._registered(subject, body)
            case "POST", ["compatibility", "subjects", subject, "versions", _]:
                self._versions(subject)
                return {"is_compatible": not self.incompatible, "messages": self.incompatible}
        raise LookupError(40400, "HTTP 404 Not Found")

    def _schema(self, schema_id: int, asked: dict[str, str]) -> dict[str, Any]:
        if schema_id not in self.schemas:
            raise LookupError(40403, "Schema not found")
        found = dict(self.schemas[schema_id])
        if found.get("schemaType") == "PROTOBUF" and asked.get("format") != "serialized":
            found["schema"] = 'syntax = "proto3";'
        return found

    def _versions(self, subject: str) -> dict[int, int]:
        if subject not in self.subjects:
            raise LookupError(40401, f"Subject '{subject}' not found.")
        return self.subjects[subject]

    def _looked_up(self, subject: str, body: dict[str, Any], normalized: bool) -> dict[str, Any]:
        for version, schema_id in self._versions(subject).items():
            if self._is(self.schemas[schema_id], body, normalized):
                return {"subject": subject, "version": version, "id": schema_id} | body
        raise LookupError(40403, "Schema not found")

    def _is(self, found: dict[str, Any], body: dict[str, Any], normalized: bool = False) -> bool:
        is_read = normalized or not self.literal
        return (is_read or found["schema"] == body["schema"]) and _same(found, body)

    def _registered(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        if self.incompatible:
            raise LookupError(40901, "; ".join(self.incompatible))
        same = [number for number, each in self.schemas.items() if self._is(each, body)]
        schema_id = same[0] if same else max(self.schemas, default=0) + 1
        versions = self.subjects.setdefault(subject, {})
        if schema_id not in versions.values():
            versions[max(versions, default=0) + 1] = schema_id
        self.schemas.setdefault(schema_id, {k: v for k, v in body.items() if v is not None})
        return {"id": schema_id}


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two schemas are one, however their JSON is spelled."""

    def plain(each: dict[str, Any]) -> tuple[Any, ...]:
        kind = each.get("schemaType") or "AVRO"
        text = each["schema"] if kind == "PROTOBUF" else json.loads(each["schema"])
        return kind, text, each.get("references") or []

    return plain(one) == plain(other)


@contextmanager
def schema_registry() -> Iterator[FakeRegistry]:
    fake = FakeRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer("GET", b"")

        def do_POST(self) -> None:
            self._answer("POST", self.rfile.read(int(self.headers["Content-Length"])))

        def _answer(self, method: str, body: bytes) -> None:
            login = self.headers.get("Authorization", "")
            status, answer = fake.answer(method, self.path, login, body)
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer[: len(answer) // 2] if fake.half else answer)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        fake.pause.set()
        server.shutdown()
        server.server_close()
        thread.join()
