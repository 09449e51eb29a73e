"""Every way back, on to where there is nothing new, one record, or no broker to ask.

The dullest start is the one that a busy test never sees: Spark plans an epoch where the offset it
finds is spelled otherwise than the source spells it. `in_session.HereQuery` does so, too, and one
test is on Spark.
"""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.e2e.in_session import Pipeline, produce
from tests.e2e.rebuild_steps import run as rebuild
from tests.e2e.tally import FUNCTION, Tables, model, newest, order, write_file
from typer.testing import CliRunner

from catchwater.cli import app
from catchwater.config import CatchwaterError
from catchwater.pipeline.opened import OpenPipeline
from catchwater.pipeline.run import config, versions
from catchwater.pipeline.run import run as runs
from catchwater.pipeline.run.versions import Identity
from catchwater.recovery import checkpoint
from catchwater.recovery.intact import look
from catchwater.recovery.ledger import Ledger, read_offset
from catchwater.wire.client import Client

pytestmark = pytest.mark.timeout(1800)

RECORDS, EPOCH, RETAIN = 80, 20, 2


class Life:
    """A pipeline that has read all there is and has stopped, and the commands typed at it."""

    def __init__(self, broker: Any, folder: Path, spark: Any = None) -> None:
        self.broker, self.folder = broker, folder
        self.tables = Tables(folder / "rows.db")
        self.topic = folder.name.replace("_", "-")  # a test's own, on the broker that all share
        with Client(broker.bootstrap) as client:
            client.create_topics({self.topic: 1})
        self.produced = 0
        self.file = write_file(folder, broker.bootstrap, self.tables, EPOCH)
        text = self.file.read_text().replace('"orders"', f'"{self.topic}"')
        text = text.replace("[source]", f'name = "{self.topic}"\n[source]')
        self.file.write_text(f"{text}[recovery]\nretain = {RETAIN}\n")
        self.codes = 0
        self.code(1)
        self.produce(RECORDS)
        self.run(spark)
        self.check()

    def code(self, version: int) -> None:
        """Let the file name this version of the function."""
        self.codes += 1
        module = f"seen_{id(self)}_{self.codes}"
        text = FUNCTION.replace("version=1", f"version={version}")
        (self.folder / f"{module}.py").write_text(text)
        lines = self.file.read_text().splitlines()
        lines[1] = f'function = "{module}:Tallied"'
        self.file.write_text("\n".join(lines) + "\n")

    def type(self, *words: str, code: int = 0) -> str:
        """`catchwater …`; what was said."""
        done = CliRunner().invoke(app, words)
        error = done.exception if isinstance(done.exception, CatchwaterError) else None
        said = done.output + (f"{error} {error.hint}" if error else "")
        assert (error.exit_code if error else done.exit_code) == code, (said, done.exception)
        return done.stdout if "--json" in words else said

    def produce(self, count: int) -> None:
        if count:
            orders = (order(0, n) for n in range(self.produced, self.produced + count))
            produce(self.broker.bootstrap, self.topic, 0, *orders)
        self.produced += count

    def run(self, spark: Any = None) -> int:
        """Until all is read; how many epochs that took."""
        here = Pipeline(spark, self.folder, self.file)
        here.run()
        return len(here.epochs)

    def check(self) -> None:
        """Tables and state are what a plain loop over all orders gives."""
        rows = Counter(
            {row: n for row, n in model(0, self.produced).items() if row[0].startswith("card-0-")}
        )
        assert self.tables.rows("live") == rows
        assert self.tables.rows("newest") == newest(rows)

    def save(self) -> str:
        """Take a savepoint; its name."""
        name = f"s{len(list(self.folder.glob('savepoints/*')))}"
        self.type("savepoint", "create", str(self.file), "--name", name, "--yes")
        return name

    @property
    def epochs(self) -> list[int]:
        return Ledger(self.checkpoint).epochs()

    @property
    def checkpoint(self) -> Path:
        return config.load(self.file, {}).checkpoint

    def files(self) -> dict[str, bytes]:
        """What of the checkpoint a start that comes to nothing must not change, but for spaces."""
        logs = ("offsets", "commits", "catchwater/epochs", "catchwater/contracts")
        paths = [path for log in logs for path in (self.checkpoint / log).glob("[0-9]*")]
        last = checkpoint.last_commit(self.checkpoint)
        return {str(p): p.read_bytes().replace(b" ", b"") for p in paths if int(p.stem) <= last}


def restored(life: Life) -> None:
    name = life.save()
    shutil.rmtree(life.checkpoint)
    life.type("savepoint", "restore", str(life.file), name, "--yes")


def rolled_back(life: Life) -> None:
    """A version that wrote nothing yet, and one that did: its epoch is written anew."""
    life.code(2)
    life.type("pipeline", "upgrade", str(life.file), "--to", "2", "--yes")
    life.run()
    life.type("pipeline", "rollback", str(life.file), "--yes")
    life.code(1)


def rewound(life: Life) -> None:
    life.type("recovery", "restore", str(life.file), "--checkpoint", str(life.epochs[-2]), "--yes")
    life.run()  # the epoch that was undone; what comes now is what is unread


def rebuilt(life: Life) -> None:
    assert rebuild("rebuild", life.file, f"a{life.codes}{len(life.files())}") == 0


def fallen_back(life: Life) -> None:
    """To the checkpoint before the newest, which is damaged."""
    path = life.checkpoint / "catchwater" / "epochs" / f"{life.epochs[-1]}.json"
    path.write_bytes(path.read_bytes()[:-3])


def restored_by_an_earlier_version(life: Life) -> None:
    """It spelled offsets without spaces."""
    restored(life)
    for path in (life.checkpoint / "offsets").iterdir():
        lines = path.read_text().splitlines()
        compact = msgspec.json.format(lines[2].encode(), indent=-1)
        path.write_bytes("\n".join(lines[:2]).encode() + b"\n" + compact)


def restored_by_an_earlier_version_and_started(life: Life) -> None:
    """Spark took the other spelling for input, and planned a batch that was refused."""
    restored_by_an_earlier_version(life)
    last = checkpoint.last_commit(life.checkpoint)
    planned = (life.checkpoint / "offsets" / str(last)).read_text().splitlines()
    planned[2] = json.dumps(json.loads(planned[2]))
    (life.checkpoint / "offsets" / str(last + 1)).write_text("\n".join(planned))


Way = Callable[[Life], None]
WAYS = [
    restored,
    restored_by_an_earlier_version,
    restored_by_an_earlier_version_and_started,
    rolled_back,
    rewound,
    rebuilt,
    fallen_back,
]


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__)
def way(request: pytest.FixtureRequest) -> Way:
    chosen: Way = request.param
    return chosen


@pytest.fixture(scope="module")
def broker(make_broker: Callable[..., Any]) -> Any:
    return make_broker({"log.retention.ms": "-1"})


@pytest.fixture
def life(broker: Any, tmp_path: Path) -> Life:
    return Life(broker, tmp_path)


@pytest.mark.parametrize("unread", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_pipeline_goes_on(
    life: Life, way: Way, unread: int, caplog: pytest.LogCaptureFixture
) -> None:
    way(life)
    life.produce(unread)
    life.run()
    life.check()
    assert life.run() == 0, "there is nothing new"
    life.produce(1)
    assert life.run() == 1
    life.check()
    rows = json.loads(life.type("recovery", "explain", str(life.file), "--json"))["checkpoints"]
    retained = life.epochs
    assert [(row["checkpoint"], row["restorable"]) for row in rows] == [(e, True) for e in retained]
    assert len(retained) <= RETAIN
    broken = [r for r in caplog.records if "can no longer be restored" in r.getMessage()]
    assert not broken, "only forgotten"


@pytest.mark.parametrize(
    "way",
    [rolled_back, *(pytest.param(way, marks=pytest.mark.slow) for way in WAYS[:3] + WAYS[4:])],
    ids=lambda way: way.__name__,
    indirect=True,
)
def test_a_way_back_without_a_broker_changes_nothing_and_is_gone_with_one(
    life: Life, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the command nor the start after it; what they say names the broker."""

    @contextmanager
    def away() -> Iterator[None]:
        """Nobody waits long for a broker that is not there; for one that is there, everybody."""
        life.broker.stop()
        before = life.files()
        with monkeypatch.context() as patch:
            patch.setattr(runs, "TIMEOUT_S", 1.0)
            patch.setitem(OpenPipeline.__init__.__kwdefaults__, "timeout_s", 1.0)
            yield
        assert life.files() == before
        life.broker.start()

    name = life.save()
    with away():
        for words in (
            ("savepoint", "restore", str(life.file), name, "--into", str(life.folder / "other")),
            ("pipeline", "rollback", str(life.file)),
            ("recovery", "restore", str(life.file), "--checkpoint", str(life.epochs[0])),
        ):
            assert life.broker.bootstrap in life.type(*words, "--yes", code=1)
        assert not (life.folder / "other").exists()
    way(life)
    with away(), pytest.raises(CatchwaterError, match=life.broker.bootstrap):
        life.run()
    life.run()
    life.check()
    assert life.run() == 0


@pytest.mark.spark
def test_spark_finds_nothing_new(broker: Any, spark: Any, tmp_path: Path) -> None:
    life = Life(broker, tmp_path, spark)
    path = life.checkpoint / "offsets" / str(checkpoint.last_commit(life.checkpoint))
    assert path.read_text().splitlines()[2] == read_offset(path).to_text()
    for way in (restored, restored_by_an_earlier_version_and_started):
        way(life)
        assert life.run(spark) == 0
    (life.checkpoint / "metadata").write_bytes(b"")
    life.produce(1)
    assert life.run(spark) == 1
    life.check()
    check_named(life.checkpoint)


READERS = (Identity.read, versions.load)


def check_named(folder: Path) -> None:
    """Every file of a checkpoint that Spark made, damaged in turn, is survived; ours are named."""
    assert look(folder, READERS).problems == []
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        kept, inside = path.read_bytes(), path.relative_to(folder).as_posix()
        checked = inside == "metadata" or (inside.endswith(".json") and "staged" not in inside)
        if inside.startswith(("offsets/", "commits/")) and path.name.isdigit():
            checked = int(path.name) >= Ledger(folder).epochs()[0]
        for content in (kept[: len(kept) // 2], b"\xff" + kept, b"[]", b""):
            path.write_bytes(content)
            named = [problem for problem in look(folder, READERS).problems if str(path) in problem]
            assert len(named) == 1 or not checked, (path, named)
        path.write_bytes(kept)
