"""A checkpoint is bound to its pipeline by what was begun in it, not by a start that failed."""

from pathlib import Path

import msgspec
import pytest

from catchwater.pipeline.run import identity
from catchwater.pipeline.run.identity import bind

CARDS = identity.Identity("cards", ["risk"], 4, ["payments"], {"alerts": "sqlite alerts"})
OTHERS = msgspec.structs.replace(CARDS, sinks={"alerts": "sqlite others"})


def test_a_start_that_began_nothing_holds_on_to_nothing(tmp_path: Path) -> None:
    bind(tmp_path, CARDS)
    bind(tmp_path, OTHERS)
    assert identity.read(tmp_path) == OTHERS


@pytest.mark.parametrize("begun", ["offsets/0", "catchwater/replayed/offsets/3"])
def test_what_was_begun_binds(tmp_path: Path, begun: str) -> None:
    bind(tmp_path, CARDS)
    path = tmp_path / begun
    path.parent.mkdir(parents=True)
    path.touch()
    bind(tmp_path, CARDS)
    with pytest.raises(
        identity.OtherPipeline, match=r"'alerts' has written to sqlite alerts .*others"
    ):
        bind(tmp_path, OTHERS)
    assert identity.read(tmp_path) == CARDS
