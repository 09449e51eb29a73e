"""What is done and what was under way, told from the files and from what the sinks say."""

from pathlib import Path

import pytest

from catchwater.recovery.explain import Account, Stretch, account
from catchwater.recovery.intact import Look
from catchwater.recovery.ledger import EpochEntry, ShardEpoch, SinkEpoch, SourceOffset

BEGINNING = SourceOffset(-1, {"t": {"0": 5, "1": 0}}, [0], 0)
SINKS = {"a": SinkEpoch("a", 1, "c"), "b": SinkEpoch("b", 1, "c")}


def end(epoch: int) -> SourceOffset:
    """Ten records of each partition an epoch."""
    return SourceOffset(epoch, {"t": {"0": 15 + 10 * epoch, "1": 10 + 10 * epoch}}, [0], 0)


def entry(epoch: int) -> EpochEntry:
    start = end(epoch - 1) if epoch else BEGINNING
    shards = [ShardEpoch(n, keys=3, state_bytes=100) for n in (0, 1)]
    return EpochEntry(epoch, start, end(epoch), shards, SINKS, 0)


def look(last: int, entries: list[int], planned: int | None = None) -> Look:
    return Look(
        Path("c"), last, [], {}, None if planned is None else end(planned),
        [entry(each) for each in entries], [],
    )  # fmt: skip


def words(told: Account) -> dict[str, str]:
    return dict(told.words)


def test_before_the_first_epoch_there_is_nothing() -> None:
    told = account(look(-1, []), BEGINNING, {"a": None})
    assert (told.epoch, told.records, told.in_flight) == (None, 0, None)
    assert words(told) == {
        "inputs": "no epoch is done yet",
        "state": "none is durable yet",
        "sink a": "has nothing yet",
        "in flight": "nothing",
    }


def test_at_rest_everything_up_to_the_last_epoch_is_done() -> None:
    told = account(look(3, [2, 3]), BEGINNING, {"a": 3, "b": 3})
    assert told.epoch == 3
    assert told.inputs == [Stretch("t", 0, 5, 45), Stretch("t", 1, 0, 40)]
    assert (told.records, told.keys, told.state_bytes, told.shards) == (80, 6, 200, 2)
    assert words(told) == {
        "inputs": "80 records processed by epoch 3: t-0 offsets 5 to 45, t-1 offsets 0 to 40",
        "state": "durable as epoch 3 left it: 6 keys and 200 bytes in 2 shards",
        "sink a": "has every output of these inputs, up to epoch 3",
        "sink b": "has every output of these inputs, up to epoch 3",
        "in flight": "nothing",
    }


def test_a_planned_epoch_is_in_flight_and_may_be_in_some_sinks() -> None:
    told = account(look(3, [2, 3], planned=4), BEGINNING, {"a": 4, "b": 3, "c": 3}, unmarked=["c"])
    flying = told.in_flight
    assert told.epoch == 3 and flying is not None
    assert (flying.epoch, flying.records, flying.has, flying.done) == (4, 20, ["a"], False)
    assert flying.inputs == [Stretch("t", 0, 45, 55), Stretch("t", 1, 40, 50)]
    assert flying.words == (
        "epoch 4, 20 records (t-0 offsets 45 to 55, t-1 offsets 40 to 50): its outputs are in a "
        "and not in b, c; the next start runs it again, to the same end; it may be written twice "
        "to c"
    )
    assert words(told)["sink a"].endswith("and those of epoch 4 already")
    assert words(told)["sink c"].startswith("is written at least once and keeps no marks")
    nowhere = account(look(3, [3], planned=4), BEGINNING, {"a": 3}).in_flight
    assert nowhere is not None and "in no sink" in nowhere.words


def test_a_planned_first_epoch_is_in_flight() -> None:
    told = account(look(-1, [], planned=0), BEGINNING, {"a": 0})
    assert told.in_flight is not None
    assert (told.in_flight.records, told.in_flight.has) == (20, ["a"])
    assert words(told)["sink a"] == "has the outputs of epoch 0 already"


@pytest.mark.parametrize("planned", [4, None])  # a plan that a power failure has emptied
def test_an_epoch_in_the_ledger_is_done_though_spark_has_not_noted_it(planned: int | None) -> None:
    told = account(look(3, [3, 4], planned=planned), BEGINNING, {"a": 4, "b": 4})
    assert (told.epoch, told.records) == (4, 100)
    assert told.in_flight is not None and told.in_flight.done
    assert (told.in_flight.has, told.in_flight.records) == (["a", "b"], 20)
    assert "no sink is written twice" in told.in_flight.words
    assert words(told)["sink a"] == "has every output of these inputs, up to epoch 4"


def test_what_a_restore_went_back_behind_is_in_the_sinks_and_runs_again() -> None:
    told = account(look(3, [3]), BEGINNING, {"a": 7}, recorded=[4, 5, 6, 7])
    assert words(told)["sink a"] == (
        "has epochs up to 7; those after 3 run again and are not written twice"
    )


@pytest.mark.parametrize(
    ("has", "said"),
    [
        (2, "ends at epoch 2: it lacks epochs 3 to 3"),
        (None, "lacks its epochs, up to 3: they were lost"),
        (9, "has epochs up to 9, of which this checkpoint knows nothing"),
        ("it does not answer", "unknown: it does not answer"),
    ],
)
def test_a_sink_that_is_not_where_it_should_be_is_named(has: int | str | None, said: str) -> None:
    assert words(account(look(3, [3]), BEGINNING, {"a": has}))["sink a"] == said


def test_a_sink_that_is_new_has_nothing_yet() -> None:
    assert words(account(look(3, [3]), BEGINNING, {"z": None}))["sink z"] == "has nothing yet"


def test_where_the_ledger_cannot_be_read_that_is_said() -> None:
    told = account(look(3, [1, 2]), BEGINNING, {"a": 3}, under_way="a rewind to epoch 2")
    assert told.epoch is None and told.inputs == []
    assert words(told)["inputs"] == "unknown: the ledger's entry of epoch 3 cannot be read"
    assert words(told)["sink a"] == "has epochs up to 3"
    assert words(told)["under way"] == "a rewind to epoch 2"
