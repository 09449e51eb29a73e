"""Stores by URL, and what is said of a URL that is none."""

import sys
from pathlib import Path

import pytest

from catchwater.clock import ManualClock
from catchwater.config import ConfigError
from catchwater.objects.open import open_store, place


def test_a_directory_and_memory_are_opened(tmp_path: Path) -> None:
    store = open_store((tmp_path / "with space").as_uri(), ManualClock())
    store.put("a", [b"x"])
    assert (tmp_path / "with space" / "a").read_bytes() == b"x"
    assert store.requests.snapshot() == {("put", "ok"): 1}
    assert open_store("memory:", ManualClock()).url() == "memory:///"


def test_a_bucket_is_opened_without_being_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    store = open_store("s3://bucket/some/prefix/?region=eu-west-1", ManualClock())
    assert store.url() == "s3://bucket/some/prefix?endpoint=http://127.0.0.1:1&region=eu-west-1"
    assert open_store(store.url(), ManualClock()).url() == store.url()
    signed = store.url("a/b")
    assert signed.startswith("http://127.0.0.1:1/bucket/some/prefix/a/b?")
    assert "eu-west-1" in signed and "secret" not in signed
    told = place(store, "a/b")
    assert told.startswith("s3://bucket/some/prefix/a/b?") and "Signature" not in told


@pytest.mark.parametrize(
    "url", ["", "/dir", "dir", "file://host/dir", "file:dir", "s3://", "s3:bucket", "gs://bucket"]
)
def test_what_is_no_store_is_refused_with_the_forms_there_are(url: str) -> None:
    with pytest.raises(ConfigError, match="is not the URL of an object store") as refusal:
        open_store(url, ManualClock())
    assert "s3://bucket/prefix" in str(refusal.value.hint)


@pytest.mark.parametrize("url", ["s3://id:secret@bucket/p", "s3://bucket/p?secret=secret"])
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        open_store(url, ManualClock())
    assert "secret@" not in str(refusal.value) and "=secret" not in str(refusal.value)


def test_without_obstore_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.delitem(sys.modules, "catchwater.objects.s3", raising=False)
    with pytest.raises(ConfigError, match="needs the package obstore") as refusal:
        open_store("s3://bucket", ManualClock())
    assert "catchwater[s3]" in str(refusal.value.hint)
