"""A pipeline's checkpoint, state and savepoints under keys: nothing readable, nothing lost."""

import base64
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from catchwater.clock import SYSTEM
from catchwater.config import ConfigError
from catchwater.objects.keys import KeyMissing, KeyWrong
from catchwater.objects.open import KEYS, check_seal, open_store
from catchwater.objects.seal import LOCAL, KeysNeeded
from catchwater.pipeline.change.rollback import look, roll_back
from catchwater.pipeline.change.upgrade import upgrade
from catchwater.pipeline.run.run import prepare
from catchwater.recovery.folder import home_of, refresh
from catchwater.recovery.savepoint.signature import SavepointUntrusted
from catchwater.sinks.epochs import store_at

from .conftest import FROM_V1, Shop
from .test_at_url import ShopAtUrl

MARKER = "marker-9d1e"


def use(patch: pytest.MonkeyPatch, **numbers: int) -> None:
    """Keys by their names, the last of which seals; none: there are no keys.

    A process keeps those it began with for the stores that it has open: this is another.
    """
    store_at.cache_clear()
    lines = [
        f"{name} = {base64.b64encode(bytes([n]) * 32).decode()}" for name, n in numbers.items()
    ]
    patch.setenv("OF_THE_TEST", "\n".join(lines))
    patch.setenv(LOCAL, "disk")
    if numbers:
        patch.setenv(KEYS, "env:OF_THE_TEST")
    else:
        patch.delenv(KEYS, raising=False)


@pytest.fixture(params=[Shop, ShopAtUrl], ids=["in-a-folder", "at-a-url"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """Nothing has run yet."""
    path = list(sys.path)
    made = request.param(tmp_path)
    made.code()
    yield made
    sys.path[:] = path


def elsewhere(shop: Shop) -> Shop:
    return shop.elsewhere() if isinstance(shop, ShopAtUrl) else shop


def files(shop: Shop) -> dict[Path, bytes]:
    """All that lies in the checkpoint and its savepoints; not the sink's rows."""
    return {
        path: path.read_bytes()
        for path in shop.folder.rglob("*")
        if path.is_file() and path.name != "rows.db" and path.suffix not in (".py", ".pyc")
    }


def holders(shop: Shop) -> list[Path]:
    return [path for path, data in files(shop).items() if MARKER.encode() in data]


def test_keys_and_state_are_nowhere_readable_through_a_pipeline_s_life(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, one=1)
    shop.run(MARKER, "b")
    use(monkeypatch, one=1, two=2)  # rotated between two epochs
    elsewhere(shop).run(MARKER, "c")
    elsewhere(shop).code(2, "count: int = 0", FROM_V1.format(count="old['seen']"))
    upgrade(shop.pipeline, 2)  # takes a savepoint
    elsewhere(shop).run(MARKER)
    assert (MARKER, 3, 2) in shop.rows()
    assert any("savepoints" in path.parts for path in files(shop))
    assert holders(shop) == []
    use(monkeypatch, two=2)  # with the first key gone, what it has sealed is named
    with pytest.raises(KeyMissing, match=r"file:///.*checkpoint.* cannot be opened: .*'one'"):
        elsewhere(shop).run(MARKER)


def test_a_checkpoint_from_before_goes_on_sealed(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch)
    shop.run(MARKER)
    before = holders(shop)
    assert before
    use(monkeypatch, one=1)
    elsewhere(shop).run(MARKER, "c")
    assert shop.rows() == [("c", 1, 1), (MARKER, 1, 1), (MARKER, 2, 1)]
    assert set(holders(shop)) <= set(before)


@pytest.mark.parametrize("given", [{}, {"one": 2}, {"other": 1}], ids=["none", "wrong", "other"])
def test_without_its_key_a_start_says_where_and_changes_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, given: dict[str, int]
) -> None:
    use(monkeypatch, one=1)
    shop.run(MARKER)
    check_seal(open_store(home_of(shop.checkpoint), SYSTEM))  # as every start does
    before = files(shop)
    use(monkeypatch, **given)
    with pytest.raises((KeysNeeded, KeyWrong, KeyMissing)) as refusal:
        refresh(elsewhere(shop).checkpoint) if isinstance(shop, ShopAtUrl) else None
        prepare(shop.config, 0.0, SYSTEM)
    assert (shop.folder / shop.checkpoint_name).as_uri() in str(refusal.value)
    assert refusal.value.hint
    now = files(shop)
    scratch = (f"machine-{n}" for n in range(3))
    assert {p: d for p, d in now.items() if not {*scratch} & {*p.parts}}.items() >= {
        p: d for p, d in before.items() if "machine-0" not in p.parts
    }.items()


def test_no_savepoint_is_rolled_back_to_that_was_put_there(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch)
    shop.run(MARKER)
    elsewhere(shop).code(2, "count: int = 0", FROM_V1.format(count="old['seen']"))
    upgrade(shop.pipeline, 2)
    elsewhere(shop).run("c")
    use(monkeypatch, one=1)
    before = shop.rows()
    with pytest.raises(SavepointUntrusted, match="is not signed, and there are keys"):
        roll_back(elsewhere(shop).pipeline, look(shop.pipeline))
    assert shop.rows() == before


def test_local_state_that_no_disk_encrypts_stops_the_start(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, one=1)
    monkeypatch.delenv(LOCAL)
    with pytest.raises(ConfigError, match="its local state and Spark's files on this machine"):
        prepare(shop.config, 0.0, SYSTEM)
