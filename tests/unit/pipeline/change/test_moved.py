"""A sink's target is known by its database, not by its table's name alone."""

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace

import msgspec
import pytest

from catchwater.pipeline.change import rollback
from catchwater.pipeline.change.upgrade import look, upgrade
from catchwater.pipeline.run.backfill import BadBackfill, check_apart
from catchwater.pipeline.run.config import PipelineConfig
from catchwater.pipeline.run.versions import Identity, OtherPipeline, bind
from catchwater.sinks import kafka_client
from catchwater.sinks.config import AT_LEAST_ONCE, SinkConfig, parse
from catchwater.sinks.epochs import Marks
from catchwater.sinks.kinds import kafka

from .conftest import Shop


def start(shop: Shop, config: PipelineConfig) -> None:
    """The part of a start that looks at whose checkpoint it is."""
    pipeline = shop.pipeline.other(config=config)
    bind(config.checkpoint, pipeline.identity(), pipeline.doubt)


def elsewhere(shop: Shop, path: str, delivery: str = "exactly-once") -> PipelineConfig:
    sink = shop.config.sinks["rows"]
    moved = replace(sink, options=replace(sink.options, path=path), delivery=delivery)  # type: ignore[arg-type]
    return replace(shop.config, sinks={"rows": moved})


def bound_to(shop: Shop) -> str:
    found = Identity.read(shop.checkpoint)
    assert found is not None
    return found.sinks["rows"]


def test_another_database_with_a_table_of_the_same_name_is_another_target(shop: Shop) -> None:
    """The epochs before would be missing there, and nobody would be told."""
    with pytest.raises(OtherPipeline, match=r"'rows' has written to sqlite .*/rows\.db tally so far"
                       r".*and is now to write to sqlite .*/other\.db tally"):  # fmt: skip
        start(shop, elsewhere(shop, "other.db"))
    assert not (shop.folder / "other.db").exists()
    assert bound_to(shop) == f"sqlite {shop.folder}/rows.db tally"
    start(shop, elsewhere(shop, f"{shop.folder}/../{shop.folder.name}/rows.db"))


def test_an_upgrade_does_not_change_the_target_either(shop: Shop) -> None:
    pipeline = shop.code(2)
    with pytest.raises(OtherPipeline, match="is now to write to"):
        look(pipeline.other(config=elsewhere(shop, "other.db")), 2)


def test_a_rollback_takes_nothing_back_from_another_database(shop: Shop) -> None:
    upgrade(shop.code(2), 2)
    shop.run("b")
    with pytest.raises(OtherPipeline, match="is now to write to"):
        rollback.look(shop.pipeline.other(config=elsewhere(shop, "other.db")))
    assert rollback.look(shop.pipeline).savepoint.epoch == 1


def test_a_database_that_holds_all_that_was_written_may_be_elsewhere(shop: Shop) -> None:
    shutil.copy(shop.folder / "rows.db", shop.folder / "moved.db")
    start(shop, elsewhere(shop, "moved.db"))
    assert bound_to(shop) == f"sqlite {shop.folder}/moved.db tally"
    with closing(sqlite3.connect(shop.folder / "rows.db")) as older, older:
        older.execute("DELETE FROM catchwater_epochs WHERE epoch > 0")
    with pytest.raises(OtherPipeline, match="it has them up to epoch 0 of 1"):
        start(shop, shop.config)


def test_a_whole_folder_may_move(shop: Shop) -> None:
    shop.folder = shop.folder.rename(shop.folder.with_name(f"{shop.folder.name}-moved"))
    start(shop, shop.config)
    assert bound_to(shop) == f"sqlite {shop.folder}/rows.db tally"


def test_a_checkpoint_that_knows_the_table_only_goes_on_and_knows_more(shop: Shop) -> None:
    """As checkpoints of earlier versions do."""
    found = Identity.read(shop.checkpoint)
    assert found is not None
    old = msgspec.structs.replace(found, sinks={"rows": "sqlite tally"})
    old.write(shop.checkpoint)
    assert look(shop.code(2), 2)
    with pytest.raises(BadBackfill, match="which is the live pipeline's"):
        check_apart(shop.config, shop.config)
    start(shop, shop.config)
    assert bound_to(shop) == f"sqlite {shop.folder}/rows.db tally"


def test_without_marks_a_move_is_told_by_who_writes_there(shop: Shop) -> None:
    shutil.copy(shop.folder / "rows.db", shop.folder / "moved.db")
    start(shop, elsewhere(shop, "moved.db", AT_LEAST_ONCE))
    with pytest.raises(OtherPipeline, match="is now to write to"):
        start(shop, elsewhere(shop, "other.db", AT_LEAST_ONCE))


def dead_letters(path: str) -> SinkConfig:
    return parse("dead-letter", {"kind": "sqlite", "path": path, "table": "dead"})


def test_dead_letters_are_bound_to_their_target_as_any_sink_is(shop: Shop) -> None:
    """A checkpoint that was begun without them takes them as they are."""
    start(shop, replace(shop.config, dead_letter=dead_letters("dead.db")))
    found = Identity.read(shop.checkpoint)
    assert found is not None
    assert found.sinks["dead-letter"] == f"sqlite {shop.folder}/dead.db dead"
    with pytest.raises(
        OtherPipeline, match=r"'dead-letter' has written to sqlite .*/dead\.db dead"
    ):
        start(shop, replace(shop.config, dead_letter=dead_letters("other.db")))
    assert not (shop.folder / "other.db").exists()


def test_dead_letters_that_were_left_out_for_a_while_stay_bound(shop: Shop) -> None:
    start(shop, replace(shop.config, dead_letter=dead_letters("dead.db")))
    start(shop, shop.config)
    with pytest.raises(OtherPipeline, match="'dead-letter'"):
        start(shop, replace(shop.config, dead_letter=dead_letters("other.db")))


def test_another_topic_is_another_target_though_the_marks_beside_it_are_the_same(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers may move with their ledger topic; what lay in one topic is not in another."""
    monkeypatch.setattr(kafka_client.Brokers, "check_there", lambda brokers: None)
    monkeypatch.setattr(kafka, "read_marks", lambda *_: Marks("tally", "rows", 0, newest=1))

    def into(topic: str, brokers: str) -> PipelineConfig:
        section = {"kind": "kafka", "topic": topic, "kafka.bootstrap.servers": brokers}
        return replace(shop.config, sinks={"rows": parse("rows", section)})

    found = Identity.read(shop.checkpoint)
    assert found is not None
    found.with_sink("rows", "kafka alerts at a:1").write(shop.checkpoint)
    with pytest.raises(OtherPipeline, match="kafka other at a:1, which is another topic"):
        start(shop, into("other", "a:1"))
    start(shop, into("alerts", "b:1"))
    assert bound_to(shop) == "kafka alerts at b:1"
