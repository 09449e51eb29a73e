"""`catchwater top`: the record of a page as lines, none wider than the terminal."""

import shlex

import pytest
from tests.unit.web.reports import NOW_MS, report

from catchwater.cli import demo
from catchwater.cli.top import drawn, paint, silent
from catchwater.config import CatchwaterError
from catchwater.verdicts import Verdict
from catchwater.web import of_pipelines


def test_a_pipeline_shows_its_verdicts_and_what_to_type_next() -> None:
    wrong = Verdict("fail", "The sink alerts differs: 1 altered.", "catchwater sink verify c.toml")
    seen = of_pipelines.PipelinePage(report(correct=wrong), [], [], [], None)
    lines = drawn(of_pipelines.pipeline(seen, NOW_MS), 80)
    text = "\n".join(lines)
    assert "correct      ✘ fail     The sink alerts differs: 1 altered." in text
    assert "→ catchwater sink verify c.toml" in text
    assert "recoverable  ✔ ok" in text
    assert "Is it keeping up?" in text
    assert max(map(len, lines)) <= 80


def test_a_long_reason_is_wrapped_and_not_cut() -> None:
    why = "The sink alerts differs: 1 altered, 2 missing, and the broker has not said why that is."
    seen = of_pipelines.PipelinePage(report(fresh=Verdict("warn", why, "x")), [], [], [], None)
    lines = drawn(of_pipelines.pipeline(seen, NOW_MS), 60)
    first = next(at for at, line in enumerate(lines) if "fresh " in line)
    assert " ".join(line[26:].strip() for line in lines[first : first + 3]) == why


def test_a_command_that_is_too_long_for_a_line_can_still_be_pasted() -> None:
    command = "catchwater sink verify '/srv/pipelines of us/cards.toml' --sink alerts-of-the-day"
    wrong = Verdict("fail", "1 altered.", command)
    seen = of_pipelines.PipelinePage(report(correct=wrong), [], [], [], None)
    lines = drawn(of_pipelines.pipeline(seen, NOW_MS), 80)
    first = next(at for at, line in enumerate(lines) if "→" in line)
    last = next(at for at, line in enumerate(lines) if at >= first and not line.endswith(" \\"))
    assert last > first and max(map(len, lines)) <= 80
    pasted = "\n".join(lines[first : last + 1]).replace("\\\n", "")
    assert shlex.split(pasted)[1:] == shlex.split(command)


def test_a_broker_that_is_silent_leaves_what_was_known_and_nothing_green() -> None:
    away = CatchwaterError("The control API did not answer.", hint="Is the broker running?")
    assert silent(None, away, 80) == [str(away), "Is the broker running?"]
    wrong = Verdict("fail", "1 altered.", "catchwater sink verify c.toml")
    seen = of_pipelines.PipelinePage(report(correct=wrong), [], [], [], None)
    text = "\n".join(silent(of_pipelines.pipeline(seen, NOW_MS), away, 80))
    assert "As of 14:13:20 UTC, the last answer:" in text
    assert "✘ fail     1 altered." in text and "✔" not in text
    assert text.count("? unknown  The broker does not answer.") == 2


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    seen = of_pipelines.PipelinePage(report(), [], [], [], None)
    assert max(map(len, drawn(of_pipelines.pipeline(seen, NOW_MS), width))) <= width


def test_colours_are_for_terminals_alone() -> None:
    assert paint("ok", "fine") == "fine"


def test_a_browser_is_opened_only_where_there_is_a_display(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(demo.webbrowser, "open", opened.append)
    monkeypatch.setattr(demo.sys, "platform", "linux")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    for display, expected in (("", []), (":0", ["http://127.0.0.1:9644/"])):
        monkeypatch.setenv("DISPLAY", display)
        demo._Browser().begins("http://127.0.0.1:9644/")
        assert opened == expected
    assert capsys.readouterr().err == "the page: http://127.0.0.1:9644/\n" * 2
