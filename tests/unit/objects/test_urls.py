"""Ranges by URL, as a Spark task reads them."""

import http.server
import io
import os
import threading
import urllib.request
from email.message import Message
from pathlib import Path
from typing import NoReturn
from urllib.error import HTTPError

import pytest

from catchwater.objects import urls
from catchwater.objects.base import (
    ObjectMissing,
    ObjectTruncated,
    StoreError,
    StoreRefused,
)
from catchwater.objects.local import LocalStore
from catchwater.objects.urls import AccessEnded, read_range


def test_any_range_of_a_local_object_is_read_by_its_url(tmp_path: Path) -> None:
    data = bytes(range(256)) * 64
    store = LocalStore(tmp_path / "with space and ü")
    store.put("a/b", [data])
    url = store.url("a/b")
    for offset, size in [(0, len(data)), (1, 10), (4096, 4096), (4095, 8193), (16384, 0)]:
        assert read_range(url, offset, size) == data[offset : offset + size]


def test_the_bytes_outlive_the_name(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a", [b"hello world"])
    view = read_range(store.url("a"), 6, 5)
    store.delete("a")
    assert view == b"world"
    assert view.readonly


def test_a_missing_or_short_object_is_an_error(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a", [b"hello"])
    with pytest.raises(ObjectTruncated, match="ends at byte 5"):
        read_range(store.url("a"), 3, 3)
    with pytest.raises(ObjectMissing):
        read_range(store.url("b"), 0, 1)
    with pytest.raises(StoreError):
        read_range(tmp_path.as_uri(), 0, 1)


@pytest.mark.parametrize(
    "url", ["memory:///a", "postgresql:wal/1-1/1.wal", "file://other-host/a", "/a"]
)
def test_a_url_of_neither_a_local_file_nor_a_server_is_refused(url: str) -> None:
    with pytest.raises(StoreError, match="cannot be read from here"):
        read_range(url, 0, 1)


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (403, b"", AccessEnded),
        (400, b"<Error><Code>ExpiredToken</Code></Error>", AccessEnded),
        (400, b"<Error><Code>InvalidArgument</Code></Error>", StoreRefused),
        (404, b"ExpiredToken", ObjectMissing),
    ],
)
def test_a_url_that_has_ended_is_told_from_one_that_is_wrong(
    monkeypatch: pytest.MonkeyPatch, status: int, body: bytes, kind: type[StoreError]
) -> None:
    def urlopen(request: urllib.request.Request, timeout: float) -> NoReturn:
        raise HTTPError(request.full_url, status, "No", Message(), io.BytesIO(body))

    monkeypatch.setattr(urls._OPENER, "open", urlopen)
    with pytest.raises(StoreError, match=f"http://h/a answered {status}|no object at") as caught:
        read_range("http://h/a?X-Amz-Signature=secret", 0, 1)
    assert type(caught.value) is kind
    assert "secret" not in str(caught.value)


def test_a_redirect_is_not_followed() -> None:
    asked = []

    class Elsewhere(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(302)
            self.send_header("Location", "/secret")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            with pytest.raises(StoreRefused, match="answered 302"):
                read_range(f"http://127.0.0.1:{server.server_port}/a", 0, 1)
        finally:
            server.shutdown()
            thread.join()
    assert asked == ["/a"]


def test_only_a_plain_file_is_an_object(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"hello")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(StoreError):
            read_range((tmp_path / name).as_uri(), 0, 1)
    with pytest.raises(StoreError, match="no object"):
        read_range("file:///dev/zero", 0, 1)
