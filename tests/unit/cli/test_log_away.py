"""No command keeps a person waiting for brokers that do not answer; only a run is patient."""

from pathlib import Path
from typing import Any

import pytest

from catchwater.cli import init
from catchwater.recovery import pins
from catchwater.replay import subscription
from catchwater.wire.client import RequestTimedOut

LONGEST_S = 10.0
COMMANDS = {
    "plan": ("pipeline", "plan"),
    "doctor": ("doctor",),
    "upgrade": ("pipeline", "upgrade", "--to", "2"),
    "rollback": ("pipeline", "rollback"),
    "backfill": ("pipeline", "backfill", "--label", "june"),
    "savepoint create": ("savepoint", "create"),
    "contract check": ("contract", "check"),
    "recovery explain": ("recovery", "explain"),
    "recovery restore": ("recovery", "restore", "--checkpoint", "1"),
    "sink verify": ("sink", "verify"),
    "sink repair": ("sink", "repair"),
}


@pytest.fixture
def asked_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long each client would have asked the brokers."""
    found: list[float] = []

    class Away:
        def __init__(self, bootstrap: str, *, timeout_s: float = 30.0, **_: Any) -> None:
            self._timeout_s = timeout_s

        def __getattr__(self, name: str) -> Any:
            def ask(*_: Any, **__: Any) -> Any:
                found.append(self._timeout_s)
                raise RequestTimedOut(f"Gave up after {self._timeout_s:g} s at 127.0.0.1:1.")

            return ask

        def close(self) -> None:
            pass

    for module in (subscription, pins):
        monkeypatch.setattr(module, "Client", Away)
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_gives_up_on_the_log_in_time_and_says_so(
    catchwater: Any,
    pipeline_file: Path,
    asked_s: list[float],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if name == "backfill":
        monkeypatch.setenv("CATCHWATER_SINK__ALERTS__TOPIC", "others")
    (pipeline_file.parent / "card_risk.py").write_text(init.FILES["card_risk.py"])
    noun, *more = COMMANDS[name]
    verb, options = (more[:1], more[1:]) if noun != "doctor" else ([], more)
    answer = catchwater(noun, *verb, pipeline_file, *options)
    assert answer.code != 0
    assert "Gave up after" in answer.err + answer.out
    assert 0 < sum(asked_s) <= LONGEST_S
