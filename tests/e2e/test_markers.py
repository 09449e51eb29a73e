"""A word in records, keys, state and errors is nowhere to be read where nobody should look.

A broker with keys and a pipeline over it, which fails on some events. The word is looked for in all
that lies on the disk, in what is logged and audited, in metrics and in every process's command
line. The same without keys shows that the search finds what there is.
"""

import base64
import os
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import COMMAND_ITSELF, until
from tests.e2e.in_session import Pipeline, produce, read

from catchwater.config import ConfigError
from catchwater.objects.open import reaches_no_disk
from catchwater.objects.seal import KeysNeeded
from catchwater.sinks.epochs import store_at
from catchwater.wire.client import Client

pytestmark = pytest.mark.spark

WORD = "Zq8vX2mLw7"
"""Short and without a pattern, so that no compression hides it."""
EVENTS = 60
FUNCTION = """\
from dataclasses import dataclass, field
from catchwater import Context, Keyed, Out, function

@dataclass
class Order:
    card: str
    note: str
    n: int
    at: int

@dataclass
class Seen:
    notes: list[str] = field(default_factory=list)

@dataclass
class Row:
    card: str
    note: str

@function(name="marked", version=1, key="card", event_time="at", late="process",
          poison="dead-letter")
class Marked(Keyed[Order, Seen, Row]):
    def on_event(self, e: Order, s: Seen, ctx: Context) -> Out[Row]:
        if e.n % 10 == 3:
            raise ValueError(f"nobody likes {e.note}")
        s.notes.append(e.note)
        return [Row(e.card, e.note)]
"""
FILE = """\
[pipeline]
function = "{module}:Marked"
checkpoint = "checkpoint"
local = "local"
trigger = "available-now"
shards = 2
[source]
kafka.bootstrap.servers = "{bootstrap}"
subscribe = "orders"
startingOffsets = "earliest"
maxOffsetsPerTrigger = 20
[sink.rows]
topic = "rows"
[dead_letter]
topic = "letters"
"""


class World:
    """A broker and the folder of a pipeline; of both all that lies there."""

    def __init__(self, broker: Any, folder: Path, key: str) -> None:
        self.broker, self.folder, self.key = broker, folder, key
        self.file = folder / "pipeline.toml"

    def write(self) -> None:
        module = f"marked_{abs(hash(self.folder))}"
        (self.folder / f"{module}.py").write_text(FUNCTION)
        text = FILE.format(module=module, bootstrap=self.broker.bootstrap)
        self.file.write_text(text)

    def feed(self) -> None:
        with Client(self.broker.bootstrap) as client:
            client.create_topics({"orders": 2})
        for n in range(EVENTS):
            order = {"card": f"{WORD}-{n % 7}", "note": f"{WORD} {n}", "n": n}
            produce(
                self.broker.bootstrap, "orders", n % 2, order | {"at": 1_700_000_000_000 + n},
                key="card",
            )  # fmt: skip
        produce(self.broker.bootstrap, "orders", 0, f'{{"card": "{WORD}", not JSON'.encode())

    def check(self) -> None:
        """It has run: rows and dead letters are there, with the word in them."""
        assert len(read(self.broker.bootstrap, "rows")) == EVENTS - 6
        letters = read(self.broker.bootstrap, "letters")
        assert len(letters) == 7 and all(WORD.encode() in value for _, value in letters)

    def holders(self, *words: str) -> set[str]:
        """Where one of the words stands at rest: the first parts of the path."""
        found = set()
        for top in (self.broker.home, self.folder):
            for path in top.rglob("*"):
                inside = path.relative_to(top)
                with suppress(FileNotFoundError, IsADirectoryError, OSError):
                    data = path.read_bytes() + inside.as_posix().encode()
                    if any(word.encode() in data for word in words):
                        found.add("/".join(inside.parts[:2]))
        return found

    def said(self) -> str:
        """What is said aloud: logs, metrics, command lines of all processes."""
        with urllib.request.urlopen(f"{self.broker.control_url}/metrics", timeout=20) as reply:
            told = self.broker.log() + reply.read().decode()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                told += path.read_text(errors="replace")
        for path in self.folder.rglob("*.log"):
            told += path.read_text(errors="replace")
        return told


@pytest.fixture
def make_world(
    make_broker: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[bool], World]]:
    def make(is_sealed: bool) -> World:
        key = base64.b64encode(os.urandom(32)).decode()
        keys = tmp_path / "of-the-test"
        keys.touch(0o600)
        keys.write_text(f"k = {key}\n")
        broker = make_broker({}, start=False)
        broker.settings |= {
            "catchwater.pack.interval.ms": "200", "catchwater.pack.min.bytes": "1",
            "log.retention.ms": "-1",
            "catchwater.audit.dir": str(broker.home / "audit"),
        }  # fmt: skip
        if is_sealed:
            broker.settings["catchwater.encryption.keys"] = f"file:{keys}"
            monkeypatch.setenv("CATCHWATER_ENCRYPTION_KEYS", f"file:{keys}")
            monkeypatch.setenv("CATCHWATER_ENCRYPTION_LOCAL", "disk")
        broker.start(*COMMAND_ITSELF)
        store_at.cache_clear()
        folder = tmp_path / "pipeline"
        folder.mkdir()
        monkeypatch.syspath_prepend(str(folder))
        return World(broker, folder, key)

    yield make
    store_at.cache_clear()


def packed(world: World) -> bool:
    return any((world.broker.data_dir / "objects" / "segments").rglob("*.seg"))


@pytest.mark.parametrize("is_sealed", [True, False], ids=["sealed", "plain"])
def test_a_word_is_nowhere_at_rest_and_in_nothing_that_is_said(
    make_world: Callable[[bool], World], caplog: pytest.LogCaptureFixture, is_sealed: bool
) -> None:
    world = make_world(is_sealed)
    world.write()
    world.feed()
    Pipeline(None, world.folder, world.file).run()
    world.check()
    until(lambda: packed(world))
    holders = world.holders(WORD, base64.b64encode(WORD.encode()).decode())
    if is_sealed:
        assert holders == {"local/" + name for name in os.listdir(world.folder / "local")}
    else:
        assert {"data/wal", "data/objects", "checkpoint/catchwater"} <= holders
    assert world.holders(world.key) == set()
    for told in (world.said(), caplog.text):
        assert WORD not in told
        assert world.key not in told
    audit = "".join(path.read_text() for path in (world.broker.home / "audit").rglob("*.jsonl"))
    assert audit and WORD not in audit and world.key not in audit


def test_with_local_state_in_memory_a_word_is_nowhere_on_a_disk(
    make_world: Callable[[bool], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(True)
    world.write()
    world.feed()
    monkeypatch.delenv("CATCHWATER_ENCRYPTION_LOCAL")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        monkeypatch.setattr("tempfile.tempdir", memory)
        if not reaches_no_disk(world.folder):
            with pytest.raises(ConfigError, match=str(world.folder / "local")):
                Pipeline(None, world.folder, world.file).run()
        world.file.write_text(
            world.file.read_text().replace('local = "local"', f'local = "{memory}"')
        )
        if not reaches_no_disk(Path(memory)):  # it would be swapped to a disk as it is
            with pytest.raises(ConfigError, match=memory):
                Pipeline(None, world.folder, world.file).run()
            return
        Pipeline(None, world.folder, world.file).run()
        world.check()
        assert any(WORD.encode() in each.read_bytes() for each in Path(memory).rglob("*.mdb"))
    assert world.holders(WORD) == set()


def test_a_pipeline_without_keys_leaves_nothing_in_a_sealed_store(
    make_world: Callable[[bool], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(True)
    world.write()
    world.feed()
    monkeypatch.delenv("CATCHWATER_ENCRYPTION_KEYS")
    store_at.cache_clear()
    with pytest.raises(KeysNeeded, match="is encrypted, and no key was given"):
        Pipeline(None, world.folder, world.file).run()
    assert not {each for each in world.holders(WORD) if each.startswith("data")}
