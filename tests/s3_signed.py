"""An HTTP proxy in front of an S3 server that lets nothing through without a valid signature.

Servers for tests accept anything; this one computes the signature of a signed URL anew (AWS
Signature Version 4, in the query), compares its key, and looks at its time. Requests that are
signed in a header (those of who has the credentials) must name the key. `proxy.seen` has the
requests that came, the refused with 403; `proxy.end_all()` ends every URL signed until now.
"""

import hashlib
import hmac
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl

from tests.s3 import CREDENTIALS
from tests.s3_faults import FaultyProxy, _Handler

_TIME = "%Y%m%dT%H%M%SZ"


class SignedProxy(FaultyProxy):
    """The proxy; `endpoint` is what clients are given."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.RequestHandlerClass = _Checked
        self._ended_at = datetime.min.replace(tzinfo=UTC)

    def end_all(self) -> datetime:
        """End every URL signed up to this second; URLs signed in the next one are good."""
        self._ended_at = datetime.now(UTC).replace(microsecond=0)
        return self._ended_at

    def has_ended(self, query: dict[str, str]) -> bool:
        signed = datetime.strptime(query["X-Amz-Date"], _TIME).replace(tzinfo=UTC)
        life = timedelta(seconds=int(query["X-Amz-Expires"]))
        return signed <= self._ended_at or datetime.now(UTC) > signed + life


class _Checked(_Handler):
    server: SignedProxy

    def _serve(self) -> None:
        if not self._is_let_in():
            self.server.next("403")
        super()._serve()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve

    def _is_let_in(self) -> bool:
        _, _, query_text = self.path.partition("?")
        query = dict(parse_qsl(query_text))
        if "X-Amz-Signature" in query:
            return query["X-Amz-Signature"] == self._signature(query) and not (
                self.server.has_ended(query)
            )
        key = CREDENTIALS["AWS_ACCESS_KEY_ID"]
        return f"Credential={key}/" in self.headers.get("Authorization", "")

    def _signature(self, query: dict[str, str]) -> str:
        path, _, text = self.path.partition("?")
        pairs = sorted(pair for pair in text.split("&") if "X-Amz-Signature=" not in pair)
        signed = query["X-Amz-SignedHeaders"]
        headers = [f"{name}:{self.headers.get(name, '')}" for name in signed.split(";")]
        canonical = [self.command, path, "&".join(pairs), *headers]
        request = "\n".join([*canonical, "", signed, "UNSIGNED-PAYLOAD"])
        _, _, scope = query["X-Amz-Credential"].partition("/")
        digest = hashlib.sha256(request.encode()).hexdigest()
        text = "\n".join(["AWS4-HMAC-SHA256", query["X-Amz-Date"], scope, digest])
        key = b"AWS4" + CREDENTIALS["AWS_SECRET_ACCESS_KEY"].encode()
        for part in [*scope.split("/"), text]:
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        return key.hex()


@contextmanager
def signed_proxy(target: str) -> Iterator[SignedProxy]:
    """A proxy that serves until the context ends."""
    proxy = SignedProxy(target)
    thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield proxy
    finally:
        proxy.closing.set()
        proxy.shutdown()
        thread.join()
        proxy.server_close()
