"""What becomes of declared fields, and of values that have none."""

import json

import pytest

from catchwater.replay.read import hidden
from catchwater.values.policy import FORM, OPAQUE, SECRET, SecretMissing, parse_policy
from catchwater.wire.arrow import encode_batch, locate, place

TEXT = "card.number=hash, card.holder=mask,cvv=drop , seen.at=drop"
VALUE = {
    "id": 7, "card": {"number": "4111", "holder": "Ann", "kind": "debit"}, "cvv": 123,
    "seen": [{"at": 1, "by": "x"}, {"at": 2}, 3],
}  # fmt: skip


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET, "0123456789abcdef")


def seen(text: str, value: object) -> object:
    policy = parse_policy(text)
    assert policy is not None
    found = policy.apply(json.dumps(value).encode())
    assert found is not None
    return json.loads(found)


def test_fields_are_dropped_masked_and_hashed_and_the_rest_stays() -> None:
    found = seen(TEXT, VALUE)
    assert isinstance(found, dict)
    number = found["card"].pop("number")
    assert len(number) == 32 and int(number, 16)
    assert found == {
        "id": 7, "card": {"holder": "***", "kind": "debit"}, "seen": [{"by": "x"}, {}, 3],
    }  # fmt: skip
    assert seen(TEXT, VALUE) == seen(TEXT, VALUE)
    assert seen("a=hash", {"a": "4111"}) == {"a": number}, "the same in every topic"


def test_a_hash_needs_its_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    first = seen("a=hash", {"a": 1})
    monkeypatch.setenv(SECRET, "another-secret-of-ours")
    assert seen("a=hash", {"a": 1}) != first
    for given in ("", "short"):
        monkeypatch.setenv(SECRET, given)
        with pytest.raises(SecretMissing, match=SECRET):
            seen("a=hash", {"a": 1})
        assert seen("a=mask,b=mask", {"a": 1, "b": "x"}) == {"a": None, "b": "***"}


@pytest.mark.parametrize("value", [b"4111", b'"4111"', b"[4111]", b"\xff\xfe", b"{4111", b""])
def test_what_is_no_object_is_left_out_whole(value: bytes) -> None:
    policy = parse_policy(TEXT)
    assert policy is not None
    assert policy.apply(value) == OPAQUE
    assert policy.apply(None) is None


@pytest.mark.parametrize(
    ("text", "is_good"),
    [
        ("", True), (TEXT, True), ("a=drop", True), ("a.b.c=mask,d=hash", True),
        ("a=", False), ("=drop", False), ("a=keep", False), ("a", False), ("a..b=drop", False),
        ("a=drop,", False), ("a=drop b=drop", False), (".a=drop", False),
    ],
)  # fmt: skip
def test_the_setting_has_one_form(text: str, is_good: bool) -> None:
    assert bool(FORM.fullmatch(text)) == is_good


def test_records_keep_all_but_their_values() -> None:
    records = [
        (b"k%d" % n if n else None, None if n == 3 else json.dumps({"a": "s", "n": n}).encode(),
         1_700_000_000_000 + 7 * n, (("h", b"v"), ("e", None)) if n % 2 else ())
        for n in range(500)
    ]  # fmt: skip
    data = encode_batch(records, base_offset=90)
    (located,) = locate(data, place(data), first=92, stop=580)
    policy = parse_policy("a=mask")
    assert policy is not None
    again = [*hidden(located, policy)]
    for name in ("key", "offset", "timestamp", "timestampType", "headers"):
        found = [each for part in again for each in part.column(name).to_pylist()]
        assert found == located.column(name).to_pylist(), name
    values = [each for part in again for each in part.column("value").to_pylist()]
    assert values[0] == b'{"a":"***","n":2}' and values[1] is None and len(values) == 488
    assert not any(b'"s"' in bytes(part.source) for part in again)
