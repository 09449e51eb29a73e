"""Tables for people, JSON for programs."""

import json
import logging

import pytest

from catchwater.cli.console import log_to_stderr, print_json, print_table


def test_a_table_stands_in_columns_without_trailing_blanks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(["topic", "records"], [("payments", 12_345), ("a", 7)])
    assert capsys.readouterr().out == ("topic     records\npayments   12 345\na               7\n")


def test_a_table_without_rows_is_its_headings(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["topic", "records"], [])
    assert capsys.readouterr().out == "topic  records\n"


def test_json_is_one_document_in_the_order_given(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"b": 1, "a": None})
    out = capsys.readouterr().out
    assert json.loads(out) == {"b": 1, "a": None}
    assert out.index('"b"') < out.index('"a"')


def test_what_sparks_bridge_logs_under_no_name_is_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handler = logging.NullHandler()
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    log_to_stderr()
    shown = [
        bool(handler.filter(logging.LogRecord("root", logging.INFO, path, 1, "told", (), None)))
        for path in ("/lib/py4j/java_gateway.py", "/lib/catchwater/pipeline/run/run.py")
    ]
    assert shown == [False, True]
