"""`catchwater check`: a table, the first examples, and an exit code."""

import json
from pathlib import Path
from typing import Any

from catchwater.drill.history import Line, PollLine, SendLine, write_line

SENT: list[Line] = [
    SendLine("t", 0, value, None, offset, process=1, type="ok")
    for offset, value in enumerate("abc")
]


def written(path: Path, *lines: Line) -> Path:
    path.write_bytes(b"".join(map(write_line, [*SENT, *lines])))
    return path


def read(*records: tuple[int, str]) -> PollLine:
    return PollLine("t", 0, list(records), final=True, process=2, type="ok")


def test_a_good_history_leaves_with_zero(catchwater: Any, tmp_path: Path) -> None:
    history = written(tmp_path / "h.jsonl", read((0, "a"), (1, "b"), (2, "c")))
    answer = catchwater("check", history)
    assert answer.code == 0
    assert "lost-write" in answer.out
    assert "4 operations, 3 records polled: pass." in answer.err


def test_an_anomaly_leaves_with_four_and_shows_its_lines(catchwater: Any, tmp_path: Path) -> None:
    history = written(tmp_path / "h.jsonl", read((0, "a"), (2, "c")))
    answer = catchwater("check", history)
    assert answer.code == 4
    assert "lost-write, line 2: t-0: 'b' at 1 was acknowledged" in answer.out
    told = json.loads(catchwater("check", history, "--json").out)
    assert told["verdict"] == "fail"
    counted = {found["anomaly"]: found["count"] for found in told["findings"] if found["count"]}
    assert counted == {"lost-write": 1, "poll-skip": 1}


def test_a_history_without_final_polls_says_what_it_cannot_tell(
    catchwater: Any, tmp_path: Path
) -> None:
    answer = catchwater("check", written(tmp_path / "h.jsonl"))
    assert (answer.code, "1 partitions have no final polls" in answer.err) == (0, True)


def test_a_broken_line_is_named(catchwater: Any, tmp_path: Path) -> None:
    history = written(tmp_path / "h.jsonl")
    history.write_bytes(history.read_bytes() + b"{}\n")
    answer = catchwater("check", history)
    assert answer.code == 2
    assert "line 4" in answer.err
