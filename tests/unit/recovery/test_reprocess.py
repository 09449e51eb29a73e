"""Which dead letters are sent again, and which are not."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from catchwater.clock import ManualClock
from catchwater.recovery.contract import HistoryGone
from catchwater.recovery.reprocess import Letter, Reprocessing
from catchwater.wire.arrow import encode_batch
from catchwater.wire.client import EARLIEST

Headers = tuple[tuple[str, bytes], ...]


def letter(topic: str = "in", partition: str = "1", error: str = "no") -> Headers:
    told = {"topic": topic, "partition": partition, "offset": "7", "error": error, "function": "f"}
    return tuple((name, text.encode()) for name, text in told.items())


class Log:
    """Its topic of letters has one partition, which begins at `start`."""

    def __init__(self, *records: Headers, start: int = 0) -> None:
        self.start, self.records = start, records

    def metadata(self, topics: Any) -> Any:
        return SimpleNamespace(partitions=lambda topic: [0])

    def list_offsets(
        self, wanted: dict[Any, int], *, read_committed: bool = False
    ) -> dict[Any, int]:
        end = self.start + len(self.records)
        return {key: self.start if at == EARLIEST else end for key, at in wanted.items()}

    def fetch(self, wanted: dict[Any, int], **limits: Any) -> Any:
        rows = [(b"k", b"v%d" % n, 0, each) for n, each in enumerate(self.records)]
        batch = encode_batch(rows, base_offset=self.start)
        return {key: SimpleNamespace(records=memoryview(batch), aborted=()) for key in wanted}


def found(tmp_path: Path, log: Log, **options: bool) -> Any:
    client: Any = log
    work = Reprocessing(client, tmp_path, "letters", ["in"], ManualClock())
    return work.find(**options)


def test_letters_go_to_where_they_came_from(tmp_path: Path) -> None:
    told = found(tmp_path, Log(letter(), letter(partition="0", error="bad")))
    assert told.letters == [
        Letter(0, 0, b"k", b"v0", ("in", 1), "no"), Letter(0, 1, b"k", b"v1", ("in", 0), "bad"),
    ]  # fmt: skip
    assert (told.until, told.by_topic, told.by_error) == (
        {"0": 2}, Counter(["in", "in"]), Counter(["no", "bad"]),
    )  # fmt: skip


def test_what_would_be_wrong_or_in_vain_is_not_sent_and_counted(tmp_path: Path) -> None:
    retraction = (("catchwater-retracts", b"1/0/0"), ("catchwater-retracts-offset", b"1"))
    told = found(
        tmp_path,
        Log(
            letter(),
            letter(),  # which the last record retracts
            letter(topic="first-function", partition="3"),
            letter(topic="elsewhere"),
            (),
            letter(error="it is late: its event time is 5"),
            (*letter(), *retraction),
        ),
    )
    assert [each.offset for each in told.letters] == [0]
    assert told.skipped == {
        "retracted by a rollback": 1,
        "not from an input of this pipeline": 3,
        "late, and would be again": 1,
    }


def test_letters_that_the_log_has_deleted_are_named_and_refused(tmp_path: Path) -> None:
    log = Log(letter(), letter(), start=40)
    with pytest.raises(HistoryGone, match="letters-0 offsets 0 to 40") as refused:
        found(tmp_path, log)
    assert refused.value.exit_code == 5
    told = found(tmp_path, log, skip_gone=True)
    assert [each.offset for each in told.letters] == [40, 41]
