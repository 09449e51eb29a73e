"""`recovery explain` after a kill at every step of an epoch: what it says is the truth.

Without Spark, whose part is none here. Each process is killed one step later than the one before.
"""

import json
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.conformance.kv_server import KeyValueServer, key_value_server
from tests.e2e import in_session
from tests.e2e.life import Steps
from tests.e2e.tally import PARTITIONS, TOPIC, Row, Tables, model, newest, produce, write_file
from tests.forked import FORKSERVER, preload
from typer.testing import CliRunner

from catchwater.cli import app
from catchwater.objects.local import LocalStore
from catchwater.recovery import progress
from catchwater.recovery.ledger import Ledger, numbered
from catchwater.replay.control import Control
from catchwater.sinks.kinds.http import HttpSink
from catchwater.sinks.kinds.log import LogSink
from catchwater.sinks.table import TableSink
from catchwater.wire.client import Client

pytestmark = pytest.mark.timeout(1800)

preload(__name__, "catchwater.sinks.kinds.log")
PATIENCE_S = 400
ORDERS = 6
"""New in each partition before each process."""
SINKS = ("newest", "rows", "told", "store")


FEW = (
    (in_session, "write_whole"), (Ledger, "write"), (TableSink, "commit"), (LogSink, "commit"),
    (HttpSink, "commit"),
)  # fmt: skip
"""Spark's files, entries of the ledger, and commits of sinks."""
ALL = (*FEW, (Control, "_attempt"), (LocalStore, "put"), (LocalStore, "put_if_absent"))
"""Also objects, of the state and of what is staged, and requests to the log."""
STEPS = {"few": FEW, "all": ALL}


def run_and_die(folder: Path, last: int, steps_of: str) -> None:
    """Run the pipeline here, and be killed behind a step."""
    steps = Steps(last, after=True)
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in STEPS[steps_of]:
            steps.wrap(owner, name, patch)
        in_session.Pipeline(None, folder, folder / "tally.toml").run()


class Life:
    """The pipeline, and what it is asked."""

    def __init__(self, folder: Path, bootstrap: str, store: KeyValueServer) -> None:
        self.folder, self.bootstrap, self.store = folder, bootstrap, store
        self.tables = Tables(folder / "rows.db")
        with Client(bootstrap) as client:
            client.create_topics({TOPIC: PARTITIONS})
        self.file = write_file(folder, bootstrap, self.tables, 2 * ORDERS)
        text = self.file.read_text().replace("[source]", 'name = "tally"\n[source]')
        text += '[sink.told]\ntopic = "told"\n'
        text += f'[sink.store]\nkind = "http"\nurl = "{store.url}/{{id}}"\n'
        self.file.write_text(text)
        self.produced = 0

    def produce(self) -> None:
        produce(self.bootstrap, self.produced, self.produced + ORDERS)
        self.produced += ORDERS

    def run(self) -> None:
        """To the end of what there is."""
        in_session.Pipeline(None, self.folder, self.file).run()
        assert progress.read(self.folder / "checkpoint") is None, "it has caught up"

    def die(self, step: int, steps_of: str = "few") -> bool:
        """Whether the process got as far as the step."""
        child = FORKSERVER.Process(target=run_and_die, args=(self.folder, step, steps_of))
        child.start()
        child.join(PATIENCE_S)
        assert child.exitcode in (-signal.SIGKILL, 0), step
        return child.exitcode != 0

    def explained(self) -> Any:
        said = CliRunner().invoke(app, ("recovery", "explain", str(self.file), "--json"))
        assert said.exit_code == 0, (said.output, said.exception)
        return json.loads(said.stdout)["now"]

    def rows(self, sink: str) -> Counter[Row]:
        if sink == "told":
            values = (value for _, value in in_session.read(self.bootstrap, "told"))
            told = (msgspec.json.decode(value) for value in values)
            return Counter((each["card"], each["n"], each["seen"]) for each in told)
        if sink == "store":
            put = map(msgspec.json.decode, self.store.content.values())
            return Counter((each["card"], each["n"], each["seen"]) for each in put)
        return self.tables.rows({"rows": "live"}.get(sink, sink))

    def expected(self, ends: dict[int, int]) -> Counter[Row]:
        """What a plain loop puts out for the orders before these offsets."""
        rows = model(0, self.produced)
        return Counter({row: n for row, n in rows.items() if row[1] < ends[int(row[0][5])]})

    def check(self, said: Any) -> str:
        """What is said is true; in a word, where the process was."""
        ends = {number: 0 for number in range(PARTITIONS)}
        ends |= {each["partition"]: each["end"] for each in said["inputs"]}
        assert said["records"] == sum(ends.values())
        done = self.expected(ends)
        assert said["keys"] == len({card for card, _, _ in done})
        beyond, flying = dict(ends), said["in_flight"]
        planned = max(numbered(self.folder / "checkpoint" / "offsets"), default=-1)
        committed = max(numbered(self.folder / "checkpoint" / "commits"), default=-1)
        assert (flying["epoch"] if flying else committed) == planned
        if flying and not flying["done"]:
            assert [each["first"] for each in flying["inputs"]] == [
                ends[each["partition"]] for each in flying["inputs"]
            ]
            beyond |= {each["partition"]: each["end"] for each in flying["inputs"]}
            assert flying["records"] == sum(beyond.values()) - sum(ends.values())
        has = flying["has"] if flying else []
        for sink in SINKS:
            rows = self.expected(beyond if sink in has else ends)
            expected = newest(rows) if sink in ("newest", "store") else rows
            assert self.rows(sink) == expected, (sink, said)
        if flying is None:
            assert all(" up to epoch " in each["words"] for each in said["sinks"]), said
            return "nothing in flight"
        return "in the ledger" if flying["done"] else f"in {len(has)} sinks"


@pytest.fixture
def life(make_broker: Callable[..., Any], tmp_path: Path) -> Iterator[Life]:
    broker = make_broker({"log.retention.ms": "-1", "num.partitions": str(PARTITIONS)})
    with key_value_server() as store:
        yield Life(tmp_path, broker.bootstrap, store)


@pytest.mark.parametrize("steps_of", ["few", pytest.param("all", marks=pytest.mark.slow)])
def test_wherever_it_is_killed_what_is_said_is_true(life: Life, steps_of: str) -> None:
    where, step, dies = Counter[str](), 0, True
    while dies:
        life.produce()
        life.run()
        assert life.check(life.explained()) == "nothing in flight"
        life.produce()
        step += 1
        dies = life.die(step, steps_of)
        where[life.check(life.explained())] += 1
    assert {*where} == {
        "nothing in flight", "in 0 sinks", "in 1 sinks", "in 2 sinks", "in 3 sinks", "in 4 sinks",
        "in the ledger",
    }, where  # fmt: skip
    assert life.explained()["records"] == PARTITIONS * life.produced
