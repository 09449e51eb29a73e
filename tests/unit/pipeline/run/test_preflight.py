"""A checkpoint is bound to its pipeline by what was begun in it, not by a start that failed."""

from pathlib import Path

import msgspec
import pytest
from examples.fraud_routing import CardScore

from catchwater import Kafka, Pipeline, Topic
from catchwater.clock import SYSTEM
from catchwater.config import ConfigError
from catchwater.pipeline.run.run import prepare
from catchwater.pipeline.run.versions import Identity, OtherPipeline, bind

CARDS = Identity("cards", ["risk"], 4, ["payments"], {"alerts": "sqlite alerts"})
OTHERS = msgspec.structs.replace(CARDS, sinks={"alerts": "sqlite others"})


def test_a_start_that_began_nothing_holds_on_to_nothing(tmp_path: Path) -> None:
    bind(tmp_path, CARDS)
    bind(tmp_path, OTHERS)
    assert Identity.read(tmp_path) == OTHERS


@pytest.mark.parametrize("begun", ["offsets/0", "catchwater/replayed/offsets/3"])
def test_what_was_begun_binds(tmp_path: Path, begun: str) -> None:
    bind(tmp_path, CARDS)
    path = tmp_path / begun
    path.parent.mkdir(parents=True)
    path.touch()
    bind(tmp_path, CARDS)
    with pytest.raises(OtherPipeline, match=r"'alerts' has written to sqlite alerts .*others"):
        bind(tmp_path, OTHERS)
    assert Identity.read(tmp_path) == CARDS


def test_a_state_store_that_is_none_is_refused_before_anything_is_kept(tmp_path: Path) -> None:
    """Otherwise the checkpoint would be bound to it, and the corrected file be refused."""
    pipeline = Pipeline(
        "cards", CardScore, source=Kafka("127.0.0.1:1", "payments"), sinks=[Topic("scores")],
        dead_letter=Topic("letters"), checkpoint=tmp_path / "checkpoint",
        state="ftp://host/cards", folder=tmp_path,
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"'ftp://host/cards' is not the URL of an object store"):
        prepare(pipeline.config, 0.0, SYSTEM)
    assert not [each for each in (tmp_path / "checkpoint").rglob("*") if each.is_file()]
