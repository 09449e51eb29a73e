"""`catchwater top`: the record of a page as lines, none wider than the terminal."""

import pytest
from tests.unit.web.reports import NOW_MS, report

from catchwater.cli import demo
from catchwater.cli.top import drawn, paint
from catchwater.verdicts import Verdict
from catchwater.web import of_pipelines


def test_a_pipeline_shows_its_verdicts_and_what_to_type_next() -> None:
    wrong = Verdict("fail", "The sink alerts differs: 1 altered.", "catchwater sink verify c.toml")
    seen = of_pipelines.PipelineSeen(report(correct=wrong), [], [], [], None)
    lines = drawn(of_pipelines.pipeline(seen, NOW_MS), 80)
    text = "\n".join(lines)
    assert "correct      ✘ fail     The sink alerts differs: 1 altered." in text
    assert "→ catchwater sink verify c.toml" in text
    assert "recoverable  ✔ ok" in text
    assert "Is it keeping up?" in text
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    seen = of_pipelines.PipelineSeen(report(), [], [], [], None)
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
