"""A command typed in this process: its exit code, and what it said where."""

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from catchwater.cli import main


class Answer(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


Type = Callable[..., Answer]


@pytest.fixture
def catchwater(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Type:
    """Type `catchwater` with these arguments."""

    def type_in(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["catchwater", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        told = capsys.readouterr()
        return Answer(int(left.value.code or 0), told.out, told.err)

    return type_in
