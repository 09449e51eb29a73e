"""Planted causes are named, each by its name and alone; a sound pipeline gets none."""

from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as changed

from catchwater.pipeline.diagnose import (
    PARTS,
    RULES,
    BrokerLoad,
    GroupLoad,
    Measured,
    diagnose,
    split_ms,
)
from catchwater.recovery.ledger import CallEpoch, EpochEntry, ShardEpoch, SourceOffset

EPOCHS, SHARDS, EVENTS = 10, 4, 1_000
"""Events of a shard in an epoch."""


def offsets(epoch: int, weights: tuple[int, ...] = (25, 25, 25, 25)) -> SourceOffset:
    read = SHARDS * EVENTS * (epoch + 1)
    ends = {str(p): read * weight // 100 for p, weight in enumerate(weights)}
    return SourceOffset(epoch, {"payments": ends}, [1_000 * epoch], 1_000 * epoch)


def entries(
    *, weights: tuple[int, ...] = (25, 25, 25, 25), hot: dict[str, Any] | None = None,
    entry: dict[str, Any] | None = None, **shard: Any,
) -> list[EpochEntry]:  # fmt: skip
    """Epochs of 250 ms: 100 source, 100 function (10 decode, 50 handlers, 10 waiting, 30 state),
    20 sink, 30 commit.

    `shard` changes all shards, `hot` the first one.
    """
    usual: dict[str, Any] = {
        "events": EVENTS, "outputs": 10, "keys": 100, "state_bytes": 10_000_000,
        "operator_ms": 100.0, "handle_ms": 70.0, "cpu_ms": 60.0, "decode_ms": 10.0,
        "state_ms": 30.0,
    }  # fmt: skip
    usual |= shard
    made = []
    for epoch in range(EPOCHS):
        shards = [ShardEpoch(index, **usual) for index in range(SHARDS)]
        shards[0] = changed(shards[0], **(hot or {}))
        run_ms = 100.0 + usual["operator_ms"]
        made.append(
            EpochEntry(
                epoch,
                offsets(epoch - 1, weights),
                offsets(epoch, weights),
                shards,
                {},
                finished_ms=1_000 * epoch,
                **{"run_ms": run_ms, "sink_ms": {"alerts": 20.0}, **(entry or {})},
            )
        )
    return made


SOUND = Measured(
    file="pipeline.toml",
    entries=entries(),
    functions=["card-risk"],
    tasks=2,
    commit_ms=dict.fromkeys(range(EPOCHS), 30.0),
    trigger_s=1.0,
    most_records=100_000,
    lag_s=0.4,
    input_per_s=4_000.0,
    capacity_per_s=16_000.0,
    broker=BrokerLoad(wal_writes=10_000, wal_p99_s=0.025, store_requests=5_000, store_failed=2),
    groups=[GroupLoad("readers", 2, 4, 10, 0.2), GroupLoad("whole", 4, 4, 99_999, 500.0)],
)
BUSY = replace(SOUND, input_per_s=15_000.0)
"""As sound, and with nothing to spare."""


def called(p99_ms: int = 10, failed: int = 0, breaker: str = "closed") -> dict[str, CallEpoch]:
    return {"score": CallEpoch(100, 100 + failed, failed, 0, p99_ms, breaker)}


PLANTED: dict[str, Measured] = {
    "stuck-epoch": replace(SOUND, under_way_s=240.0, epoch_s=2.0),
    "hot-key": replace(SOUND, entries=entries(hot={"hot_key": "c1", "hot_events": 900})),
    "hot-partition": replace(SOUND, entries=entries(weights=(4, 4, 2, 90))),
    "slow-function": replace(
        BUSY, entries=entries(operator_ms=900.0, handle_ms=850.0, cpu_ms=840.0), trigger_s=None
    ),
    "slow-decode": replace(
        BUSY, trigger_s=None,
        entries=entries(operator_ms=900.0, handle_ms=850.0, cpu_ms=840.0, decode_ms=600.0),
    ),
    "waiting-function": replace(
        BUSY, entries=entries(operator_ms=900.0, handle_ms=850.0, cpu_ms=40.0), trigger_s=None
    ),
    "slow-call": replace(
        SOUND,
        entries=entries(operator_ms=2_000.0, calls_ms=1_800.0, calls=called(1_700)),
        trigger_s=None,
    ),
    "slow-sink": replace(SOUND, entries=entries(entry={"sink_ms": {"alerts": 4_000.0}}),
                         trigger_s=10.0),
    "input-above-capacity": replace(SOUND, input_per_s=20_000.0, missing_per_s=4_000.0, lag_s=90.0),
    "short-trigger": replace(SOUND, trigger_s=0.1),
    "small-batches": replace(BUSY, most_records=4_000),
    "state-memory": replace(
        BUSY, trigger_s=None,
        entries=entries(operator_ms=900.0, handle_ms=850.0, cpu_ms=40.0, disk_reads=200),
    ),
    "state-rebuilt": replace(SOUND, entries=entries(rebuilt_bytes=10_000, restore_s=0.2)),
    "jvm-memory": replace(SOUND, entries=entries(entry={"gc_ms": 60.0})),
    "slow-wal": replace(SOUND, broker=BrokerLoad(wal_writes=10_000, wal_p99_s=0.5)),
    "object-store": replace(SOUND, broker=BrokerLoad(store_requests=1_000, store_failed=100)),
    "small-group": replace(SOUND, groups=[GroupLoad("readers", 1, 8, 90_000, 300.0)]),
    "short-retention": replace(SOUND, short_topics=["payments"], needed_s=86_400.0),
}  # fmt: skip


@pytest.mark.parametrize("cause", PLANTED)
def test_a_planted_cause_is_named_alone_with_evidence_and_what_helps(cause: str) -> None:
    found = diagnose(PLANTED[cause])
    assert [each.cause for each in found] == [cause]
    (finding,) = found
    assert any(c.isdigit() for c in finding.measured), "it names what was measured"
    assert finding.why.endswith(".") and finding.next and finding.subject
    assert finding.change in ("processor", "log", "architecture")


def test_every_rule_has_a_planted_cause() -> None:
    named = {
        each.cause for measured in PLANTED.values() for rule in RULES for each in rule(measured)
    }
    assert named == {*PLANTED}
    assert all(any([*rule(measured)] for measured in PLANTED.values()) for rule in RULES)


@pytest.mark.parametrize(
    "measured",
    [
        SOUND,
        BUSY,
        replace(SOUND, trigger_s=None, most_records=None, lag_s=None, broker=None, groups=()),
        replace(SOUND, entries=[]),
        replace(SOUND, entries=SOUND.entries[:1]),
        replace(SOUND, entries=entries(events=0, outputs=0)),
        replace(SOUND, entries=entries(entry={"run_ms": 0.0, "sink_ms": {}})),
        # An epoch may take twice as long as the one before.
        replace(SOUND, under_way_s=40.0, epoch_s=20.0),
        # What takes longest is no trouble where there is time to spare.
        replace(PLANTED["slow-function"], input_per_s=100.0),
        replace(PLANTED["waiting-function"], input_per_s=100.0),
        replace(PLANTED["small-batches"], input_per_s=100.0),
        # One start builds its shards once.
        replace(SOUND, entries=[*entries(rebuilt_bytes=10)[:1], *entries()[1:]]),
        replace(SOUND, entries=entries(calls=called(900))),  # slow answers, and no time to speak of
        Measured("pipeline.toml", [], [], 2),
        Measured("pipeline.toml", [], [], 2, input_per_s=0.0, capacity_per_s=0.0),
    ],
)
def test_a_sound_pipeline_an_idle_and_an_unknown_one_get_none(measured: Measured) -> None:
    assert diagnose(measured) == []


def test_one_record_is_no_evidence() -> None:
    one = entries(events=0, outputs=0)[:1]
    shard = changed(one[0].shards[0], events=1, hot_key="c1", hot_events=1)
    assert diagnose(replace(SOUND, entries=[changed(one[0], shards=[shard])])) == []


def test_all_at_once_each_cause_is_still_named() -> None:
    worst = replace(
        SOUND,
        entries=entries(
            weights=(4, 4, 2, 90), hot={"hot_key": "it's", "hot_events": 900},
            entry={"gc_ms": 300.0, "sink_ms": {"alerts": 9_000.0, "slow": 90_000.0}},
            operator_ms=2_000.0, calls_ms=1_500.0, rebuilt_bytes=10, restore_s=1.0,
            disk_reads=500, calls=called(9_000, failed=90, breaker="open"),
        ),
        trigger_s=0.5, input_per_s=90_000.0, missing_per_s=80_000.0, stale=True, under_way_s=99.0,
        broker=BrokerLoad(10_000, 5.0, 1_000, 900), short_topics=["payments"],
        groups=[GroupLoad("readers", 1, 8, 90_000, 300.0)],
    )  # fmt: skip
    found = {each.cause: each for each in diagnose(worst)}
    assert found.keys() == {*PLANTED} - {
        "slow-function", "slow-decode", "waiting-function", "small-batches",
    }  # fmt: skip
    assert "slow" == found["slow-sink"].subject
    assert "see hot-key" in found["hot-partition"].next
    assert "nothing to move" in found["hot-partition"].why
    assert "'it'\"'\"'s'" in found["hot-key"].next, "a key is quoted for the shell"
    assert "its breaker is open" in found["slow-call"].measured
    other = replace(worst, ours=False)
    (partition,) = [each for each in diagnose(other) if each.cause == "hot-partition"]
    assert "Its leader takes all of that" in partition.why


def test_an_epochs_time_is_split_without_remainder() -> None:
    parts = split_ms(SOUND)
    assert parts == {
        "source": 100.0, "decode": 10.0, "handlers": 50.0, "waiting": 10.0, "calls": 0.0,
        "state": 30.0, "sinks": 20.0, "commit": 30.0,
    }  # fmt: skip
    assert tuple(parts) == PARTS


def test_what_a_shard_waits_for_another_one_of_its_task_is_not_its_state() -> None:
    """Of a task's shards the last one is in hand for as long as all of them take."""
    made = []
    for entry in entries(handle_ms=400.0, cpu_ms=40.0, decode_ms=0.0, state_ms=5.0):
        one, *others = entry.shards
        behind = [changed(each, operator_ms=405.0 * (2 + n)) for n, each in enumerate(others)]
        made.append(changed(entry, shards=[changed(one, operator_ms=405.0), *behind]))
    parts = split_ms(replace(SOUND, entries=made))
    assert parts["state"] < 0.02 * (parts["waiting"] + parts["state"])
    assert [each.cause for each in diagnose(replace(BUSY, entries=made, trigger_s=None))] == [
        "waiting-function"
    ]
