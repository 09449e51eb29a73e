"""Dead letters after a fix: each record goes back to its partition once, though cut short."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.e2e import in_session
from tests.e2e.in_session import produce
from typer.testing import CliRunner

from catchwater.cli import app
from catchwater.config import CatchwaterError
from catchwater.recovery.reprocess import REPROCESSED_HEADER, Reprocessing
from catchwater.wire.client import Client

pytestmark = pytest.mark.timeout(600)

FUNCTION = '''"""Doubles numbers, and does not like every third before it was fixed."""
from dataclasses import dataclass
from pathlib import Path
from catchwater import Context, Keyed, Out, function

FIXED = Path("{fixed}")

@dataclass
class Number:
    key: str
    n: int
    at: int

@dataclass
class Nothing:
    seen: int = 0

@dataclass
class Twice:
    n: int
    again: bool

@function(name="twice", version=1, key="key", event_time="at", late="process",
          poison="dead-letter", headers=True)
class Doubles(Keyed[Number, Nothing, Twice]):
    def on_event(self, e: Number, s: Nothing, ctx: Context) -> Out[Twice]:
        if e.n % 3 == 0 and not FIXED.exists():
            raise ValueError("a third")
        return [Twice(2 * e.n, "catchwater-reprocessed" in dict(ctx.headers))]
'''
FILE = """[pipeline]
function = "{module}:Doubles"
checkpoint = "checkpoint"
trigger = "available-now"
shards = 2
[source]
kafka.bootstrap.servers = "{bootstrap}"
subscribe = "numbers"
startingOffsets = "earliest"
[sink.twice]
topic = "twice"
[dead_letter]
kind = "{kind}"
topic = "letters"
"""
NUMBERS = 12


class Life:
    """The pipeline, and what its topics hold."""

    def __init__(self, folder: Path, bootstrap: str, kind: str) -> None:
        self.folder, self.bootstrap = folder, bootstrap
        with Client(bootstrap) as client:
            client.create_topics({"numbers": 2})
        module = f"doubles_{kind}"  # one process runs both, and imports a module once
        (folder / f"{module}.py").write_text(FUNCTION.replace("{fixed}", str(folder / "fixed")))
        self.file = folder / "pipeline.toml"
        self.file.write_text(FILE.format(bootstrap=bootstrap, module=module, kind=kind))
        for n in range(NUMBERS):
            number = {"key": f"k{n % 2}", "n": n, "at": in_session.WRITTEN_MS + n}
            produce(bootstrap, "numbers", n % 2, number, key="key")

    def run(self) -> None:
        in_session.Pipeline(None, self.folder, self.file).run()

    def reprocess(self, *more: str) -> Any:
        words = ("recovery", "reprocess", str(self.file), "--json", *more)
        done = CliRunner().invoke(app, words)
        if isinstance(done.exception, CatchwaterError):
            raise done.exception
        assert done.exit_code == 0, (done.output, done.exception)
        return json.loads(done.stdout)

    def twice(self) -> Counter[int]:
        return Counter(
            json.loads(value)["n"] for _, value in in_session.read(self.bootstrap, "twice")
        )

    def again(self) -> set[int]:
        """Those whose record says by its headers that it was sent again."""
        rows = (json.loads(value) for _, value in in_session.read(self.bootstrap, "twice"))
        return {row["n"] for row in rows if row["again"]}

    def sent(self) -> Counter[bytes]:
        rows = in_session.read(self.bootstrap, "numbers")
        return Counter(h[REPROCESSED_HEADER] for h, _ in rows if REPROCESSED_HEADER in h)


@pytest.fixture(params=["log", "kafka"])
def life(make_broker: Callable[..., Any], tmp_path: Path, request: pytest.FixtureRequest) -> Life:
    """Its dead letters lie in its log, or where any Kafka has them: behind transactions."""
    return Life(tmp_path, make_broker({"log.retention.ms": "-1"}).bootstrap, request.param)


def test_every_letter_goes_back_once_and_none_is_lost(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    life.run()
    good = [n for n in range(NUMBERS) if n % 3]
    assert life.twice() == Counter(2 * n for n in good)
    told = life.reprocess("--dry-run")
    assert (told["found"], told["sent"], told["by_topic"]) == (4, 0, {"numbers": 4})
    assert any("a third" in error for error in told["by_error"])
    assert not life.sent()

    # Cut short behind each step: what was sent is found, what was not is sent.
    (life.folder / "fixed").touch()
    originals = (Client.produce, Reprocessing._keep)
    for last in (1, 2, 3):
        steps = iter(range(1, 100))

        def dying(original: Any, steps: Any = steps, last: int = last) -> Any:
            def step(*arguments: Any) -> Any:
                done = original(*arguments)
                if next(steps) == last:
                    raise KeyboardInterrupt
                return done

            return step

        with monkeypatch.context() as patch:
            patch.setattr(Client, "produce", dying(originals[0]))
            patch.setattr(Reprocessing, "_keep", dying(originals[1]))
            CliRunner().invoke(app, ("recovery", "reprocess", str(life.file), "--yes"))
    life.reprocess("--yes")
    assert sorted(life.sent().values()) == [1] * 4
    told = life.reprocess("--yes")
    assert (told["found"], told["sent"]) == (0, 0)

    life.run()
    assert life.twice() == Counter(2 * n for n in range(NUMBERS))
    assert life.again() == {2 * n for n in range(NUMBERS) if n % 3 == 0}
    with Client(life.bootstrap) as client:
        ends = client.list_offsets({("numbers", n): -1 for n in (0, 1)})
    assert sum(ends.values()) == NUMBERS + 4
