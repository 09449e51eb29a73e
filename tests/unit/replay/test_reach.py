"""Nobody may send a reader further in than they are themselves."""

from pathlib import Path

import pytest

from catchwater.replay.control import Control, SentAstray, check_host, check_location
from catchwater.replay.plan import OffsetRange
from catchwater.wire import connection

HERE, NEAR, FAR = "http://127.0.0.1:9644", "http://10.9.8.7:9644", "http://8.8.8.8:9644"


@pytest.mark.parametrize(
    ("url", "named_by"),
    [
        ("file:///data/objects/a", HERE),
        ("file:///data/objects/a", "http://[::1]:9644"),
        ("http://127.0.0.1:9000/bucket/a?X-Amz-Signature=s", HERE),
        ("http://10.1.1.1:9000/bucket/a", NEAR),
        ("https://9.9.9.9/bucket/a", NEAR),
        ("https://9.9.9.9/bucket/a", FAR),
        ("s3://bucket/prefix", FAR),
        ("s3://bucket/prefix?endpoint=http://10.1.1.1:9000", NEAR),
        ("", FAR),
    ],
)
def test_a_place_as_far_away_as_who_names_it_is_read(url: str, named_by: str) -> None:
    check_location(url, named_by)


@pytest.mark.parametrize(
    ("url", "named_by"),
    [
        ("file:///etc/passwd", NEAR),
        ("file:///etc/passwd", FAR),
        ("http://169.254.169.254/latest/meta-data", NEAR),
        ("http://169.254.169.254/latest/meta-data", FAR),
        ("http://[::ffff:169.254.169.254]/latest/meta-data", FAR),
        ("http://127.0.0.1:8500/v1/kv", NEAR),
        ("http://localhost:8500/v1/kv", FAR),
        ("http://0.0.0.0:8500/v1/kv", FAR),
        ("http://[::1]:8500/v1/kv", FAR),
        ("http://10.1.1.1/admin", FAR),
        ("s3://bucket/prefix?endpoint=http://169.254.169.254", FAR),
    ],
)
def test_a_place_that_is_nearer_is_not_read(url: str, named_by: str) -> None:
    with pytest.raises(SentAstray) as refused:
        check_location(url + "?X-Amz-Signature=secret" * ("?" not in url), named_by)
    assert "secret" not in str(refused.value)
    assert "catchwater.locations" in (refused.value.hint or "")


def test_the_machine_s_own_addresses_are_as_near_as_its_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "_is_ours", lambda address: str(address) == "10.9.8.7")
    check_location("file:///data/a", NEAR)
    with pytest.raises(SentAstray):
        check_host("10.9.8.7", "http://10.9.8.8:9644")


def test_stores_that_are_named_count_alone() -> None:
    allowed = ("file:///shared/objects", "https://s3.example/bucket")
    for url in ("file:///shared/objects/a/b", "https://s3.example/bucket/a?X-Amz-Signature=s"):
        check_location(url, FAR, allowed)
    for url in (
        "file:///shared/objects-of-others/a",
        "file:///shared/objects/../secret",
        "file:///shared/objects/%2e%2e/secret",
        "https://s3.example/bucket2/a",
        "https://s3.example.evil/bucket/a",
        "https://s3.example@evil/bucket/a",
        "http://s3.example/bucket/a",
    ):
        with pytest.raises(SentAstray):
            check_location(url, HERE, allowed)


def a_range(url: str, parquet: str = "") -> dict[str, object]:
    return {
        "partition": 0, "kind": "segment", "url": url, "byte_offset": 0, "byte_size": 1,
        "base_offset": 0, "last_offset": 0, "parquet": parquet,
    }  # fmt: skip


class Answering(Control):
    """A control API that answers one thing."""

    def __init__(self, url: str, answer: dict[str, object]) -> None:
        super().__init__(url)
        self._answer = answer

    def request(self, method: str, path: str, content: object = None) -> dict[str, object]:
        return self._answer


@pytest.mark.parametrize(
    "answer",
    [
        {"ranges": [a_range("https://9.9.9.9/a"), a_range("file:///etc/shadow")]},
        {"ranges": [a_range("https://9.9.9.9/a", parquet="file:///etc/shadow")]},
        {"ranges": [], "quota": {"bytes_per_s": 1, "url": "http://169.254.169.254"}},
    ],
)
def test_a_plan_that_sends_us_astray_is_no_plan(answer: dict[str, object]) -> None:
    with pytest.raises(SentAstray):
        Answering(FAR, answer).plan([OffsetRange("t", 0, 0, 1)])


def test_staged_objects_are_not_put_where_others_choose() -> None:
    with pytest.raises(SentAstray):
        Answering(FAR, {"objects": Path("/root").as_uri()}).objects_url()
