"""An Iceberg REST catalog in a thread, over a SQL catalog of pyiceberg.

It answers what the specification says of configuration, namespaces and tables, as far as brokers
and pyiceberg ask: creating, loading and committing with requirements, a conflict as 409. Whoever
does not bear its token is refused.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyiceberg import exceptions
from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import CommitTableRequest

TOKEN = "let-me-in"
_CODES = {
    exceptions.NoSuchTableError: (404, "NoSuchTableException"),
    exceptions.NoSuchNamespaceError: (404, "NoSuchNamespaceException"),
    exceptions.NamespaceAlreadyExistsError: (409, "AlreadyExistsException"),
    exceptions.TableAlreadyExistsError: (409, "AlreadyExistsException"),
    exceptions.CommitFailedException: (409, "CommitFailedException"),
}


class RestCatalog:
    """What it has, and what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.catalog = SqlCatalog(
            "rest",
            uri=f"sqlite:///{folder}/rest.db?check_same_thread=false",
            warehouse=(folder / "warehouse").as_uri(),
        )
        self.lock = threading.Lock()
        self.token = TOKEN
        self.is_away = False
        self.asked: list[str] = []
        self.url = ""

    @property
    def properties(self) -> dict[str, str]:
        """As a pyiceberg catalog, or `catchwater.tables.catalog.*`, takes them."""
        return {"type": "rest", "uri": self.url, "token": TOKEN}

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        self.asked.append(f"{method} {path}")
        parts = [unquote(each) for each in path.split("/")[2:]]
        match method, parts:
            case "GET", ["config"]:
                return 200, {"defaults": {}, "overrides": {}}
            case "POST", ["namespaces"]:
                self.catalog.create_namespace(tuple(body["namespace"]))
                return 200, {"namespace": body["namespace"], "properties": {}}
            case "GET" | "HEAD", ["namespaces", space]:
                self.catalog.load_namespace_properties(space)
                return 200, {"namespace": [space], "properties": {}}
            case "POST", ["namespaces", space, "tables"]:
                asked = CreateTableRequest.model_validate({"location": None} | body)
                made = self.catalog.create_table(
                    (space, asked.name), asked.table_schema, properties=asked.properties
                )
                return 200, _loaded(made)
            case "GET" | "HEAD", ["namespaces", space, "tables", name]:
                return 200, _loaded(self.catalog.load_table((space, name)))
            case "POST", ["namespaces", space, "tables", name]:
                wanted = CommitTableRequest.model_validate(body)
                table = self.catalog.load_table((space, name))
                self.catalog.commit_table(table, wanted.requirements, wanted.updates)
                return 200, _loaded(self.catalog.load_table((space, name)))
        return 404, {"error": {"message": path, "type": "NoSuchEndpoint", "code": 404}}


def _loaded(table: Any) -> dict[str, Any]:
    return {
        "metadata-location": table.metadata_location,
        "metadata": json.loads(table.metadata.model_dump_json()),
        "config": {},
    }


def _handler(rest: RestCatalog) -> Callable[..., BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _reply(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            code, content = self._answered(body)
            data = b"" if self.command == "HEAD" else json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _answered(self, body: Any) -> tuple[int, Any]:
            if rest.is_away:
                return _error(503, "ServiceUnavailableException", "away")
            if self.headers.get("Authorization") != f"Bearer {rest.token}":
                return _error(401, "NotAuthorizedException", "who are you?")
            try:
                with rest.lock:
                    return rest.answer(self.command, urlsplit(self.path).path, body)
            except tuple(_CODES) as error:
                code, kind = _CODES[type(error)]
                return _error(code, kind, str(error))

        do_GET = do_HEAD = do_POST = _reply

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


def _error(code: int, kind: str, message: str) -> tuple[int, Any]:
    return code, {"error": {"message": message, "type": kind, "code": code}}


@contextmanager
def rest_catalog(folder: Path) -> Iterator[RestCatalog]:
    """One that runs as long as the `with` lasts, with its files in this folder."""
    rest = RestCatalog(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(rest))
    rest.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield rest
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
