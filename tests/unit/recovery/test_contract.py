"""The contract: what it says follows from what it was given, and fits its schema."""

import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from catchwater.recovery.contract import (
    Contract,
    FunctionVersion,
    HistoryGone,
    LogBehind,
    LogState,
    PartitionTail,
    Retention,
    Terms,
    budgets,
    check,
    check_covered,
    compute,
    kept_ms,
)
from catchwater.recovery.estimate import Pace
from catchwater.recovery.ledger import EpochEntry, ShardEpoch, SinkEpoch, SourceOffset

TERMS = Terms("cards", [FunctionVersion("card-risk", 2, "ab" * 32)], 0, 60.0, {"python": "3.11"})
TAILS = {("t", 0): PartitionTail(0, 1000, 100_000), ("t", 1): PartitionTail(200, 400, 20_000)}


def entry(epoch: int = 7) -> EpochEntry:
    end = SourceOffset(epoch, {"t": {"0": 600, "1": 400}}, [50], 60)
    shards = [ShardEpoch(0, state_bytes=10, token="a"), ShardEpoch(3, state_bytes=5, token="b")]
    sinks = {"alerts": SinkEpoch("alerts", 4, "c0ffee")}
    return EpochEntry(epoch, end, end, shards, sinks, 0)


def contract(pace: Pace = Pace()) -> Contract:  # noqa: B008  (frozen)
    return compute(entry(), TAILS, TERMS, [], oldest_clock_ms=1000, now_ms=5000, pace=pace)


def test_replay_is_what_lies_between_the_checkpoint_and_the_tail() -> None:
    told = contract()
    assert told.replay_records == 400
    assert told.replay_bytes == 40_000
    assert [(p.partition, p.offset, p.records) for p in told.inputs] == [(0, 600, 400), (1, 400, 0)]


def test_state_sinks_and_pin_are_those_of_the_epoch() -> None:
    told = contract()
    assert told.state.bytes == 15
    assert told.state.tokens == {"0-0": "a", "0-3": "b"}
    assert told.sinks["alerts"].checksum == "c0ffee"
    assert told.retention.pin == "cards/7"


def test_the_log_must_keep_at_least_what_the_oldest_checkpoint_and_a_restore_take() -> None:
    told = contract()
    assert told.restore.high_s is not None
    assert told.retention.ms == 4000 + round(told.restore.high_s * 1000)


def test_a_contract_fits_its_schema_and_reads_back() -> None:
    told = contract()
    encoded = msgspec.json.encode(told)
    assert msgspec.json.decode(encoded, type=Contract) == told
    schema = json.loads((files("catchwater.recovery") / "contract.schema.json").read_text())
    problems = list(violations(json.loads(encoded), schema, schema))
    assert not problems


def test_the_schema_in_the_package_is_that_of_the_type() -> None:
    schema = json.loads((files("catchwater.recovery") / "contract.schema.json").read_text())
    made = msgspec.json.schema(Contract)
    assert {"$ref": schema["$ref"], "$defs": schema["$defs"]} == made


KINDS: dict[str, Any] = {
    "object": dict, "array": list, "string": str, "integer": int,
    "number": int | float, "null": type(None),
}  # fmt: skip


def violations(value: Any, schema: Any, root: Any) -> Iterator[Any]:
    """Enough of a JSON schema validator for the keywords that the schema uses."""
    if "$ref" in schema:
        yield from violations(value, root["$defs"][schema["$ref"].rsplit("/", 1)[1]], root)
    elif "anyOf" in schema:
        if all(list(violations(value, option, root)) for option in schema["anyOf"]):
            yield value, schema
    elif "type" in schema and not isinstance(value, KINDS[schema["type"]]):
        yield value, schema
    else:
        yield from (name for name in schema.get("required", ()) if name not in value)
        for name, below in schema.get("properties", {}).items():
            yield from violations(value[name], below, root) if name in value else ()
        if isinstance(value, list) and isinstance(schema.get("items"), dict):
            for each in value:
                yield from violations(each, schema["items"], root)


def state(**changes: Any) -> LogState:
    given_state: dict[str, Any] = {
        "tails": TAILS,
        "pins": {"cards/7": "extended"},
        "sink_epochs": {"alerts": 7},
    }
    return LogState(**{**given_state, **changes})


def verdicts(log: LogState) -> dict[str, str]:
    return {finding.subject: finding.verdict for finding in check(contract(), log)}


def test_a_contract_that_holds_passes_everywhere() -> None:
    assert set(verdicts(state()).values()) == {"pass"}


def test_lost_history_fails_with_both_offsets() -> None:
    gone = {**TAILS, ("t", 0): PartitionTail(700, 1000, 1)}
    finding = check(contract(), state(tails=gone))[0]
    assert (finding.subject, finding.verdict) == ("t-0", "fail")
    assert "600" in finding.message and "700" in finding.message


def test_a_log_that_ends_before_the_checkpoint_or_lacks_the_partition_fails() -> None:
    assert verdicts(state(tails={("t", 0): PartitionTail(0, 10, 1)})) == {
        "t-0": "fail", "t-1": "fail", "pin": "pass", "restore": "pass", "alerts": "pass",
    }  # fmt: skip


def test_a_missing_pin_warns() -> None:
    assert verdicts(state(pins={}))["pin"] == "warn"
    assert verdicts(state(pins={"cards/7": "unreserved"}))["pin"] == "warn"
    assert verdicts(state(pins={"cards/7": "lost"}))["pin"] == "fail"


@pytest.mark.parametrize(
    ("kept_ms", "verdict", "said"),
    [
        ({}, "warn", "does not tell its retention"),
        ({"t": 3_600_000}, "pass", "longer than a restore reads back, 30 min; there are no pins"),
        ({"t": -1}, "pass", "longer than a restore reads back"),
        ({"t": 1_799_999, "u": -1}, "warn", "keeps t for 30 min, and a restore reads back 30 min"),
    ],
)
def test_without_pins_retention_has_to_reach_as_far_back(
    kept_ms: dict[str, int], verdict: str, said: str
) -> None:
    without = replace(contract(), retention=Retention(1_800_000, ""))
    (found,) = [f for f in check(without, state(pins={}, kept_ms=kept_ms)) if f.subject == "pin"]
    assert found.verdict == verdict and said in found.message


def test_a_compacted_topic_is_kept_for_ever() -> None:
    assert kept_ms({"cleanup.policy": "compact", "retention.ms": "1"}) == -1
    assert kept_ms({"cleanup.policy": "compact,delete", "retention.ms": "1"}) == 1
    assert kept_ms({"retention.ms": "5"}) == 5


def test_the_pin_of_an_older_restore_point_holds_as_well() -> None:
    """The one that the contract names may be gone, when its own epoch has become a point."""
    behind = msgspec.structs.replace(contract(), retention=Retention(1, "cards/3"))
    held = {"cards/2": "lost", "cards/5": "reserved", "cards/9": "reserved", "cards/history": "x"}
    found = {f.subject: f for f in check(behind, state(pins=held))}["pin"]
    assert found.verdict == "pass" and "cards/5" in found.message
    found = {f.subject: f for f in check(behind, state(pins={"cards/9": "reserved"}))}["pin"]
    assert found.verdict == "warn" and "there is no pin cards/3" in found.message


def test_a_sink_before_the_checkpoint_fails_and_one_behind_it_passes() -> None:
    assert verdicts(state(sink_epochs={"alerts": 6}))["alerts"] == "fail"
    assert verdicts(state(sink_epochs={}))["alerts"] == "fail"
    assert verdicts(state(sink_epochs={"alerts": 8}))["alerts"] == "pass"
    assert verdicts(state(sink_epochs={"alerts": None}))["alerts"] == "pass"


def test_an_estimate_above_the_budget_is_said() -> None:
    slow = msgspec.structs.replace(contract(), max_restore_s=25.0)
    slower = msgspec.structs.replace(contract(), max_restore_s=5.0)
    free = msgspec.structs.replace(contract(), max_restore_s=None)
    found = [
        next(f.verdict for f in check(each, state()) if f.subject == "restore")
        for each in (slow, slower, free)
    ]
    assert found == ["warn", "fail", "pass"]


@pytest.mark.parametrize("tail", [None, PartitionTail(700, 1000, 1), PartitionTail(0, 500, 1)])
def test_a_check_says_of_the_log_what_a_restore_is_refused_with(tail: PartitionTail | None) -> None:
    tails = {("t", 1): TAILS["t", 1]} | ({("t", 0): tail} if tail else {})
    with pytest.raises((HistoryGone, LogBehind)) as refused:
        check_covered(entry().end, tails)
    found = check(contract(), state(tails=tails))[0]
    assert found.verdict == "fail"
    assert str(refused.value) == f"The checkpoint of epoch 7 {found.message}."


OVERLOADED = Pace(input_per_s=500.0, busy_per_s=400.0, saturated=True, interval_s=2.0)


def test_a_restore_that_never_catches_up_breaches_every_budget_and_needs_the_log_for_ever() -> None:
    told = contract(OVERLOADED)
    assert told.restore.seconds is None
    assert told.restore.missing_per_s == 100.0
    assert told.retention.ms == -1
    (found,) = budgets(told)
    assert (found.subject, found.verdict) == ("restore", "fail")
    assert "never: 500 records/s come and 400 can be processed, 100 too few" in found.message
    (unbudgeted,) = budgets(msgspec.structs.replace(told, max_restore_s=None))
    assert unbudgeted.verdict == "warn"
    assert json.loads(msgspec.json.encode(told))["restore"]["seconds"] is None


def test_the_recovery_point_is_the_time_that_the_tail_took_to_come() -> None:
    steady = Pace(input_per_s=100.0, interval_s=3.0)
    assert contract(steady).recovery_point_s == 400 / 100 + 3
    # Nothing comes any more: what is there came since the checkpoint's clock.
    assert contract(Pace(interval_s=3.0)).recovery_point_s == (5000 - 60) / 1000 + 3
    nothing_left = {key: PartitionTail(0, 600, 1) for key in TAILS}
    told = compute(
        entry(), {**nothing_left, ("t", 1): PartitionTail(0, 400, 1)}, TERMS, [],
        oldest_clock_ms=1000, now_ms=5000, pace=steady,
    )  # fmt: skip
    assert told.recovery_point_s == 3.0


def test_a_recovery_point_beyond_its_budget_fails() -> None:
    told = contract(Pace(input_per_s=100.0, interval_s=3.0))
    budgeted = msgspec.structs.replace(told, max_replay_s=6.0)
    found = {each.subject: each.verdict for each in budgets(budgeted)}
    assert found == {"restore": "pass", "recovery point": "fail"}
    assert "7.0 s of input are read again, of 6 s at most" in budgets(budgeted)[1].message
    enough = msgspec.structs.replace(told, max_replay_s=7.0)
    assert {each.verdict for each in budgets(enough)} == {"pass"}


def test_a_contract_of_format_2_is_still_read() -> None:
    """As the code before the two timelines wrote it."""
    plain = json.loads(msgspec.json.encode(contract()))
    for name in ("recovery_point_s", "max_replay_s"):
        del plain[name]
    plain["format"] = 2
    plain["restore"] = {"seconds": 20.5, "low_s": 8.2, "high_s": 32.8, "samples": 0}
    plain["retention"]["ms"] = 5_000
    told = msgspec.convert(plain, Contract)
    assert (told.format, told.restore.seconds, told.restore.infrastructure) == (2, 20.5, None)
    assert [each.verdict for each in budgets(told)] == ["pass"]
    assert set(verdicts_of(told).values()) == {"pass"}


def verdicts_of(told: Contract) -> dict[str, str]:
    return {finding.subject: finding.verdict for finding in check(told, state())}
