"""The contract: what it says follows from what it was given, and fits its schema."""

import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchwater.recovery.contract import (
    DEFAULT_STARTUP_S,
    Contract,
    FunctionVersion,
    HistoryGone,
    LogBehind,
    LogState,
    PartitionTail,
    RestoreSample,
    Terms,
    check,
    check_covered,
    compute,
    estimate,
)
from catchwater.recovery.ledger import EpochEntry, ShardEpoch, SinkEpoch, SourceOffset

TERMS = Terms("cards", [FunctionVersion("card-risk", 2, "ab" * 32)], 0, 60.0, {"python": "3.11"})
TAILS = {("t", 0): PartitionTail(0, 1000, 100_000), ("t", 1): PartitionTail(200, 400, 20_000)}


def entry(epoch: int = 7) -> EpochEntry:
    end = SourceOffset(epoch, {"t": {"0": 600, "1": 400}}, [50], 60)
    shards = [ShardEpoch(0, state_bytes=10, token="a"), ShardEpoch(3, state_bytes=5, token="b")]
    sinks = {"alerts": SinkEpoch("alerts", 4, "c0ffee")}
    return EpochEntry(epoch, end, end, shards, sinks, 0)


def contract() -> Contract:
    return compute(entry(), TAILS, TERMS, [], oldest_clock_ms=1000, now_ms=5000)


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


def test_without_measured_restores_the_estimate_is_cautious_and_says_so() -> None:
    guess = estimate([], state_bytes=0, replay_records=0)
    assert guess.seconds == DEFAULT_STARTUP_S
    assert guess.samples == 0
    assert guess.low_s < guess.seconds < guess.high_s


def test_measured_restores_replace_the_defaults() -> None:
    sample = RestoreSample(1, 5.0, 100_000_000, 2.0, 1_000_000, 10.0)
    guess = estimate([sample] * 3, state_bytes=50_000_000, replay_records=500_000)
    assert guess.seconds == pytest.approx(5.0 + 1.0 + 5.0)
    assert guess.samples == 3


def test_the_error_bar_is_as_wide_as_the_worst_miss() -> None:
    samples = [RestoreSample(1, startup, 0, 0.0, 0, 0.0) for startup in (4.0, 5.0, 10.0)]
    guess = estimate(samples, state_bytes=0, replay_records=0)
    assert (guess.seconds, guess.low_s, guess.high_s) == (5.0, 2.5, 7.5)


spans = st.floats(0.1, 1000)
samples_drawn = st.lists(
    st.builds(RestoreSample, st.just(0), spans, st.integers(0, 10**9), spans,
              st.integers(0, 10**9), spans),
    max_size=15,
)  # fmt: skip


@given(samples_drawn, st.integers(0, 10**10), st.integers(0, 10**9), st.integers(1, 10**6))
def test_more_to_replay_never_takes_less_time(
    samples: list[RestoreSample], state: int, records: int, more: int
) -> None:
    less = estimate(samples, state_bytes=state, replay_records=records)
    longer = estimate(samples, state_bytes=state + more, replay_records=records + more)
    assert 0 <= less.low_s <= less.seconds <= less.high_s
    assert longer.seconds >= less.seconds


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
