"""A history is read line by line, and refused by the line."""

from pathlib import Path

import pytest

from catchwater.drill.history import (
    HistoryUnusable,
    Poll,
    Send,
    SendLine,
    TxnLine,
    read_history,
    read_lines,
    write_line,
)

SENT = SendLine(process=1, type="ok", topic="t", partition=0, value="a", offset=3)
DONE = TxnLine(process=2, type="info", steps=[Send("t", 0, 7), Poll("t", 1, [(1, "a")], 4)])


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_bytes(write_line(SENT) + write_line(DONE))
    assert list(read_history(path)) == [SENT, DONE]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"do":"send","process":1,"type":"ok","topic":"t","partition":0}', "value"),
        (b'{"do":"sand","process":1,"type":"ok"}', "sand"),
        (b'{"do":"assign","process":1,"type":"perhaps"}', "perhaps"),
        (b"", "truncated"),
        (b'{"do":"assign","process":1,"type":"\xff"}', "utf-8"),
    ],
)
def test_a_line_that_does_not_fit_is_named(line: bytes, why: str) -> None:
    with pytest.raises(HistoryUnusable, match=r"h\.jsonl, line 2") as refused:
        list(read_lines([write_line(SENT), line], "h.jsonl"))
    assert why in str(refused.value)
    assert refused.value.exit_code == 2


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(HistoryUnusable, match=r"none\.jsonl"):
        list(read_history(tmp_path / "none.jsonl"))
