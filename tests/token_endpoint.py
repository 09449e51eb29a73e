"""An OAuth 2 provider on loopback: a token endpoint for client credentials, and its public key."""

import base64
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

CLIENT_ID, CLIENT_SECRET = "catchwater", "client s3cret"
AUDIENCE = "kafka"


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


class Provider:
    """Gives tokens that hold for `lifetime_s`; what it was asked stands in `asked`."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.url = ""
        self.lifetime_s = 60
        self.audience = AUDIENCE
        self.failures: list[int] = []
        """With which status the next requests are answered."""
        self.asked: list[dict[str, list[str]]] = []

    def jwks(self) -> str:
        """The key by which brokers check tokens."""
        numbers = self._key.public_key().public_numbers()
        x, y = (_text(number.to_bytes(32, "big")) for number in (numbers.x, numbers.y))
        key = {
            "kty": "EC",
            "crv": "P-256",
            "kid": "k",
            "use": "sig",
            "alg": "ES256",
            "x": x,
            "y": y,
        }
        return json.dumps({"keys": [key]})

    def token(self) -> str:
        now_s = int(time.time())
        header = {"alg": "ES256", "kid": "k", "typ": "JWT"}
        claims = {
            "iss": "tests", "aud": self.audience, "sub": CLIENT_ID, "scope": "read",
            "iat": now_s, "exp": now_s + self.lifetime_s,
        }  # fmt: skip
        signed = ".".join(_text(json.dumps(part).encode()) for part in (header, claims))
        signature = self._key.sign(signed.encode(), ec.ECDSA(hashes.SHA256()))
        raw = b"".join(number.to_bytes(32, "big") for number in decode_dss_signature(signature))
        return f"{signed}.{_text(raw)}"

    def answer(self, authorization: str, form: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
        self.asked.append(form)
        if self.failures:
            return self.failures.pop(0), {}
        who = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        if authorization != f"Basic {who}":
            return 401, {"error": "invalid_client"}
        if form.get("grant_type") != ["client_credentials"]:
            return 400, {"error": "unsupported_grant_type"}
        answer = {"access_token": self.token(), "token_type": "Bearer"}
        return 200, {**answer, "expires_in": self.lifetime_s}


@contextmanager
def provider(pem: Path | None = None) -> Iterator[Provider]:
    """A started provider; over TLS with the key and certificate of this file."""
    made = Provider()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["content-length"])
            form = parse_qs(self.rfile.read(length).decode())
            status, answer = made.answer(self.headers.get("authorization", ""), form)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *about: object) -> None:
            """Nobody reads it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if pem is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    scheme = "http" if pem is None else "https"
    made.url = f"{scheme}://127.0.0.1:{server.server_port}/token"
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
