"""Who vouches for a savepoint: where there are keys, nothing unsigned or changed is restored."""

import base64
from pathlib import Path

import msgspec
import pytest

from catchwater.clock import Clock
from catchwater.objects.open import KEYS
from catchwater.recovery.savepoint.create import create
from catchwater.recovery.savepoint.export import export_file, import_file
from catchwater.recovery.savepoint.format import FILE, encode, signed_with
from catchwater.recovery.savepoint.signature import SavepointUntrusted
from catchwater.recovery.savepoint.store import Shelf

from .conftest import Made


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    use(monkeypatch, ours=1)
    return monkeypatch


def use(monkeypatch: pytest.MonkeyPatch, **numbers: int) -> None:
    """Keys by their names, the last of which signs; none: there are no keys."""
    lines = [
        f"{name} = {base64.b64encode(bytes([n]) * 32).decode()}" for name, n in numbers.items()
    ]
    monkeypatch.setenv("OF_THE_TEST", "\n".join(lines))
    if numbers:
        monkeypatch.setenv(KEYS, "env:OF_THE_TEST")
    else:
        monkeypatch.delenv(KEYS, raising=False)


def test_what_was_signed_is_read_and_a_rotated_key_still_vouches(
    made: Made, shelf: Shelf, keys: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    taken = create(made.source, shelf, "first")
    assert signed_with(shelf.raw("first")[0]) == "ours"
    assert shelf.read("first") == taken
    use(keys, ours=1, next=2)
    assert shelf.read("first") == taken
    use(keys, next=2)
    with pytest.raises(SavepointUntrusted, match=r"signed with another key: .*'ours'"):
        shelf.read("first")
    use(keys, ours=3)
    with pytest.raises(SavepointUntrusted, match="signed with another key"):
        shelf.read("first")
    use(keys)  # nobody asks where there are no keys
    assert shelf.read("first") == taken


def test_what_is_not_signed_is_refused_and_says_what_to_do(
    made: Made, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch)
    taken = create(made.source, shelf, "first")
    use(monkeypatch, ours=1)
    with pytest.raises(SavepointUntrusted, match=r"first/savepoint\.json is not signed") as refusal:
        shelf.read("first")
    assert "catchwater savepoint sign FILE NAME" in str(refusal.value.hint)
    assert refusal.value.exit_code == 5
    assert shelf.read("first", trusted=False) == taken


def test_no_byte_of_what_was_signed_can_be_changed_and_its_checksum_mended(
    made: Made, shelf: Shelf, keys: pytest.MonkeyPatch
) -> None:
    taken = create(made.source, shelf, "first")
    file = msgspec.json.decode(shelf.raw("first")[0])
    (code,) = (n for n, each in enumerate(taken.objects) if each.key.startswith("code/"))
    objects = [*taken.objects]
    objects[code] = msgspec.structs.replace(objects[code], sha256="0" * 64)
    forged = msgspec.json.decode(encode(msgspec.structs.replace(taken, objects=objects)))
    for signature in (file["signature"], None, file["signature"] | {"hmac": "0" * 64}):
        body = forged | ({"signature": signature} if signature else {})
        shelf.store.put(f"first/{FILE}", [msgspec.json.encode(body)])
        with pytest.raises(SavepointUntrusted):
            shelf.read("first")
    shelf.store.put(f"first/{FILE}", [msgspec.json.encode(file)])
    assert shelf.read("first") == taken


def test_the_signature_of_one_is_not_that_of_another(
    made: Made, shelf: Shelf, keys: pytest.MonkeyPatch
) -> None:
    create(made.source, shelf, "first")
    made.run(a=b"9")
    create(made.source, shelf, "second")
    one, two = (msgspec.json.decode(shelf.raw(name)[0]) for name in ("first", "second"))
    shelf.store.put(f"second/{FILE}", [msgspec.json.encode(two | {"signature": one["signature"]})])
    with pytest.raises(SavepointUntrusted, match="is not what was signed"):
        shelf.read("second")


@pytest.mark.parametrize("pin", [None, "", "another"])
def test_an_export_keeps_its_signature_and_an_import_signs_nothing_new(
    made: Made, shelf: Shelf, keys: pytest.MonkeyPatch, tmp_path: Path, pin: str | None
) -> None:
    create(made.source, shelf, "first")
    export_file(shelf, "first", tmp_path / "signed.tar")
    use(keys)
    made.run(a=b"9")
    bare = Shelf.at((tmp_path / "bare").as_uri(), Clock(4))
    create(made.source, bare, "bare")
    export_file(bare, "bare", tmp_path / "bare.tar")
    use(keys, ours=1, next=2)
    there = Shelf.at((tmp_path / "there").as_uri(), Clock(3))
    import_file(there, tmp_path / "signed.tar", pin=pin)
    assert there.read("first").pin == (pin or "")
    import_file(there, tmp_path / "bare.tar", pin=pin)
    with pytest.raises(SavepointUntrusted, match="is not signed"):
        there.read("bare")
