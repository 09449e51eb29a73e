"""Sinks are compared with what was staged, and mended, by command."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from catchwater.cli.console import load_here
from catchwater.pipeline.opened import OpenPipeline
from catchwater.pipeline.run.versions import Identity
from catchwater.recovery.folder import home_of
from catchwater.recovery.ledger import SinkEpoch
from catchwater.sinks.base import OutputRecord
from catchwater.sinks.config import SinkContext, open_sink, parse

FUNCTION = """
from dataclasses import dataclass
from catchwater import Keyed, function

@dataclass
class Event:
    card: str
    at: int

@dataclass
class State:
    count: int = 0

@dataclass
class Alert:
    card: str
    at: int

@function(name="cards", version=1, key="card", event_time="at", output_id=("card", "at"))
class Cards(Keyed[Event, State, Alert]):
    def on_event(self, e, s, ctx):
        return ()
"""


@pytest.fixture
def file(pipeline_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline whose SQLite sink has epochs 0 to 2, ten rows each, as the ledger says."""
    folder = pipeline_file.parent
    (folder / "cards_for_sinks.py").write_text(FUNCTION)
    text = pipeline_file.read_text().replace("card_risk:CardRisk", "cards_for_sinks:Cards")
    text = text.replace('topic = "alerts"', 'kind = "sqlite"\npath = "out.db"\ntable = "alerts"')
    pipeline_file.write_text(text)
    monkeypatch.setattr(OpenPipeline, "control", None)
    config = load_here(pipeline_file)
    alert = OpenPipeline(config).specs[0].output_type
    sink = open_sink(
        parse("alerts", {"kind": "sqlite", "path": "out.db", "table": "alerts"}),
        SinkContext("cards", home_of(config.checkpoint), folder, output_type=alert),
    )
    for epoch in range(3):
        records = [
            OutputRecord(b"c%d" % row, b'{"card":"c%d","at":%d}' % (row, epoch), 0)
            for row in range(10)
        ]
        assert isinstance(sink.commit(epoch, [sink.stager().stage(epoch, 0, records)]), SinkEpoch)
    sink.close()
    return pipeline_file


def damage(file: Path) -> None:
    with closing(sqlite3.connect(file.parent / "out.db")) as connection:
        connection.execute("DELETE FROM alerts WHERE catchwater_epoch = 1 AND card = 'c3'")
        connection.execute("UPDATE alerts SET at = 99 WHERE catchwater_epoch = 2 AND card = 'c4'")
        connection.execute("INSERT INTO alerts SELECT * FROM alerts WHERE card = 'c5' AND at = 0")
        connection.execute("INSERT INTO alerts VALUES ('zz', 1, 1, 7, 0)")
        connection.commit()


def test_a_sink_that_holds_everything_is_told_with_its_rows(catchwater: Any, file: Path) -> None:
    answer = catchwater("sink", "verify", file)
    assert answer.code == 0
    assert answer.out.splitlines()[1].split() == ["alerts", "0-2", "30", "0", "0", "0", "0"]
    assert "next" not in answer.err


def test_every_damaged_row_is_named_and_mended(catchwater: Any, file: Path) -> None:
    damage(file)
    answer = catchwater("sink", "verify", file, "--json")
    assert answer.code == 4
    (told,) = json.loads(answer.out)
    assert (told["rows"], told["missing"], told["doubled"], told["altered"]) == (30, 1, 1, 1)
    assert told["findings"] == [
        {"kind": "doubled", "epoch": 0, "shard": 0, "row": 5, "key": "c5"},
        {"kind": "missing", "epoch": 1, "shard": 0, "row": 3, "key": "c3"},
        {"kind": "foreign", "epoch": 1, "shard": 7, "row": 0, "key": ""},
        {"kind": "altered", "epoch": 2, "shard": 0, "row": 4, "key": "c4"},
    ]
    answer = catchwater("sink", "verify", file)
    assert "altered" in answer.out
    assert f"catchwater sink repair {file}\n" in answer.err
    assert "--sink alerts" in catchwater("sink", "verify", file, "--sink", "alerts").err
    dry = catchwater("sink", "repair", file, "--dry-run")
    assert "1 missing, 1 doubled, 1 altered, 1 foreign of 30 rows" in dry.err
    assert catchwater("sink", "verify", file).code == 4
    assert "4 rows repaired" in catchwater("sink", "repair", file, "--yes").err
    assert catchwater("sink", "verify", file).code == 0
    assert "nothing to repair" in catchwater("sink", "repair", file, "--yes").err


def test_a_target_restored_from_an_older_copy_gets_its_epochs_again(
    catchwater: Any, file: Path
) -> None:
    with closing(sqlite3.connect(file.parent / "out.db")) as connection:
        for table, column in (("alerts", "catchwater_epoch"), ("catchwater_epochs", "epoch")):
            connection.execute(f"DELETE FROM {table} WHERE {column} > 0")
        connection.commit()
    (told,) = json.loads(catchwater("sink", "verify", file, "--json").out)
    assert told["missing"] == 20
    assert catchwater("sink", "repair", file, "--yes").code == 0
    assert catchwater("sink", "verify", file).code == 0
    with closing(sqlite3.connect(file.parent / "out.db")) as connection:
        assert connection.execute("SELECT max(epoch) FROM catchwater_epochs").fetchone() == (2,)


def test_a_sink_that_is_not_there_is_answered_with_the_nearest(catchwater: Any, file: Path) -> None:
    answer = catchwater("sink", "verify", file, "--sink", "alrts")
    assert answer.code == 2
    assert "alerts" in answer.err


def test_a_sink_that_moved_on_purpose_is_bound_to_where_it_writes_now(
    catchwater: Any, file: Path
) -> None:
    checkpoint = file.parent / "checkpoint"
    was = Identity("cards", ["card-risk"], 4, ["payments"], {"alerts": "sqlite alerts"})
    was.write(checkpoint)
    moved = ["sink", "moved", file, "--sink", "alerts"]
    assert "sqlite alerts stays there" in catchwater(*moved, "--dry-run").err
    assert Identity.read(checkpoint) == was
    assert catchwater(*moved, "--yes").code == 0
    now = f"sqlite {file.parent}/out.db alerts"
    assert Identity.read(checkpoint) == was.with_sink("alerts", now)
    assert "nothing to do" in catchwater(*moved).err
    assert "nearest is alerts" in catchwater("sink", "moved", file, "--sink", "alert").err


@pytest.mark.parametrize("command", [("verify",), ("repair", "--yes")])
def test_a_target_that_is_not_the_bound_one_is_not_compared_and_not_repaired(
    catchwater: Any, file: Path, command: tuple[str, ...]
) -> None:
    """Every epoch would be missing there, and repair would write them all again."""
    bound = {"alerts": f"sqlite {file.parent}/out.db alerts"}
    was = Identity("cards", ["cards"], 4, ["payments"], bound)
    was.write(file.parent / "checkpoint")
    assert catchwater("sink", *command[:1], file, *command[1:]).code == 0
    file.write_text(file.read_text().replace("out.db", "other.db"))
    answer = catchwater("sink", *command[:1], file, *command[1:])
    assert answer.code == 5
    assert "out.db alerts so far, and is now to write to" in answer.err
    assert "catchwater sink moved FILE --sink alerts" in answer.err
    assert not (file.parent / "other.db").exists()


def test_a_target_that_moved_with_all_it_held_is_compared(catchwater: Any, file: Path) -> None:
    bound = {"alerts": "sqlite /elsewhere/out.db alerts"}
    was = Identity("cards", ["cards"], 4, ["payments"], bound)
    was.write(file.parent / "checkpoint")
    assert catchwater("sink", "verify", file).code == 0


def test_the_plan_tells_each_sinks_guarantee_and_why(catchwater: Any, file: Path) -> None:
    told = json.loads(catchwater("pipeline", "plan", "--offline", file, "--json").out)
    assert told["source"] == "payments at 127.0.0.1:1"
    (sink,) = told["sinks"]
    assert (sink["guarantee"], sink["to"]) == ("exactly-once", "out.db alerts")
    assert "one transaction" in sink["why"]
    assert "exactly-once" in catchwater("pipeline", "plan", "--offline", file).out


def test_a_delivery_that_cannot_be_is_refused_with_what_to_choose(
    catchwater: Any, file: Path
) -> None:
    text = file.read_text()
    http = 'kind = "http"\nmethod = "POST"\nurl = "http://h/x"\n'
    text = text[: text.index('kind = "sqlite"')] + http
    file.write_text(text)
    answer = catchwater("pipeline", "plan", file)
    assert answer.code == 2
    assert "cannot write exactly once" in answer.err
    assert "PUT" in answer.err and "at-least-once" in answer.err


def test_a_contract_is_checked_against_what_the_sinks_say(catchwater: Any, file: Path) -> None:
    from catchwater.cli.sink import last_epochs

    assert last_epochs(file) == {"alerts": 2}
    text = file.read_text().replace(
        'kind = "sqlite"', 'kind = "sqlite"\ndelivery = "at-least-once"'
    )
    file.write_text(text)
    with closing(sqlite3.connect(file.parent / "out.db")) as connection:
        connection.execute("DELETE FROM catchwater_epochs")
        connection.commit()
    assert last_epochs(file) == {"alerts": None}


def test_a_sink_that_is_asked_for_by_name_needs_no_other(catchwater: Any, file: Path) -> None:
    other = '\n[sink.gone]\nkind = "sqlite"\npath = "nowhere/out.db"\ntable = "gone"\n'
    file.write_text(file.read_text() + other)
    damage(file)
    answer = catchwater("sink", "verify", file)
    assert answer.code == 2
    assert "nowhere/out.db would lie in a folder that is not there" in answer.err
    assert catchwater("sink", "verify", file, "--sink", "alerts").code == 4
    assert catchwater("sink", "repair", file, "--sink", "alerts", "--yes").code == 0
    assert catchwater("sink", "verify", file, "--sink", "alerts").code == 0
    assert "nearest is gone" in catchwater("sink", "verify", file, "--sink", "gon").err


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ('kind = "postgres"\nurl = "mysql://h/d"\ntable = "t"', "URL of a PostgreSQL database"),
        ('kind = "http"\nurl = "ftp://h/{key}"', "must be of the form http://host:port/path"),
        ('kind = "http"\nurl = "http://h/{key}/{card}"', "{card}, which is not known"),
        ('kind = "sqlite"\npath = "o.db"\ntable = "a b"', "must be a table's name"),
    ],
)
def test_the_plan_refuses_what_no_start_could_open(
    catchwater: Any, file: Path, section: str, told: str
) -> None:
    text = file.read_text()
    file.write_text(text[: text.index('kind = "sqlite"')] + section)
    answer = catchwater("pipeline", "plan", file)
    assert answer.code == 2
    assert told in answer.err
