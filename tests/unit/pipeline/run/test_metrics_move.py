"""Each metric of a pipeline moves when what it is there for happens, and only then."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from catchwater import retries
from catchwater.clock import ManualClock
from catchwater.objects.base import StoreUnavailable
from catchwater.objects.retry import RetryPolicy, retried
from catchwater.pipeline.run.metrics import PipelineMetrics
from catchwater.pipeline.status import drilled
from catchwater.recovery.contract import PartitionTail, Terms, compute
from catchwater.recovery.estimate import Pace
from catchwater.recovery.ledger import CallEpoch, EpochEntry, ShardEpoch, SourceOffset
from catchwater.verdicts import Compared, Drilled, Freshness, Lag, PipelineStatus, Verdict

OK = Verdict("ok", "Fine.", "next")
COMPARED = Compared("rows", 900_000, 10, last_epoch=3)
CALLED = CallEpoch(5, 5, 0, 0, 40)
AT_REST = PipelineStatus(
    name="cards", state="running", correct=OK, recoverable=OK, fresh=OK, reported_ms=1_000_000,
    checkpoint="c", lag=Lag(0, 0.0), freshness=Freshness(60.0, True, 0.0, 5.0, 1.0, 10.0),
    compared=[COMPARED], history_margin_s=3600.0,
    drills=[Drilled("kill-task", "pass", 1_000, 9.0, 10.0, 1_000)],
)  # fmt: skip
SHARD = ShardEpoch(0, events=9, outputs=2, keys=3, state_bytes=100, calls={"score": CALLED})
END = SourceOffset(3, {"t": {"0": 10}}, [2_000], 5_000)
EPOCH = EpochEntry(3, END, END, [SHARD], {}, 5_250, run_ms=100.0, sink_ms={"rows": 7.0})


def values(registry: CollectorRegistry) -> dict[tuple[str, Any], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in registry.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def moved(before: Any, after: Any) -> set[str]:
    """The metrics of which a series is other than before, NaN being equal to itself."""
    names = {key[0] for key in after if repr(after[key]) != repr(before.get(key))}
    return {name.removeprefix("catchwater_") for name in names}


def fresh(**fields: Any) -> PipelineStatus:
    return seen(freshness=msgspec.structs.replace(AT_REST.freshness, **fields))


def seen(**fields: Any) -> PipelineStatus:
    return msgspec.structs.replace(AT_REST, **fields)


def differs(**fields: Any) -> PipelineStatus:
    return seen(compared=[msgspec.structs.replace(COMPARED, **fields)])


STATUSES: list[tuple[str, PipelineStatus, set[str]]] = [
    ("nothing", AT_REST, set()),
    ("a source that is not read", seen(lag=Lag(7, 2.5)),
     {"pipeline_lag_records", "pipeline_lag_seconds"}),
    ("a log that does not answer", seen(lag=Lag(unknown="no broker answers")),
     {"pipeline_lag_records", "pipeline_lag_seconds"}),
    ("another promise", fresh(max_staleness_s=5.0), {"pipeline_max_staleness_seconds"}),
    ("no checkpoint for a while", fresh(checkpoint_age_s=90.0), {"checkpoint_age_seconds"}),
    ("a slow epoch", fresh(epoch_s=12.0), {"epoch_duration_seconds"}),
    ("another interval", fresh(trigger_s=None), {"epoch_interval_seconds"}),
    ("an epoch that hangs", fresh(under_way_s=40.0), {"epoch_under_way_seconds"}),
    ("a restore", seen(catching_up={"percent": 40.0}), {"restore_progress_ratio"}),
    ("retention that comes near", seen(history_margin_s=60.0),
     {"contract_history_margin_seconds"}),
    ("a row that is gone", differs(missing=1), {"sink_missing"}),
    ("a row that is there twice", differs(doubled=1), {"sink_duplicate"}),
    ("a row that was changed", differs(altered=1), {"sink_altered"}),
    ("a row that nobody put out", differs(foreign=1), {"sink_foreign"}),
    ("a sink that nobody compares", seen(reported_ms=2_000_000), {"sink_compared_age_seconds"}),
    ("a sink that is away", differs(problem="No route."),
     {"sink_missing", "sink_duplicate", "sink_altered", "sink_foreign"}),
    ("a verdict", seen(correct=Verdict("fail", "1 missing.", "next")), {"pipeline_verdict"}),
    ("a drill that is slow", seen(drills=[Drilled("kill-task", "fail", 2_000, 19.0, 10.0, 1_000)]),
     {"drill_measured_restore_seconds"}),
    ("a drill that passes", seen(drills=[Drilled("kill-task", "pass", 2_000, 9.0, 10.0, 2_000)]),
     {"drill_last_success_timestamp_seconds"}),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "status", "names"), STATUSES, ids=[each[0] for each in STATUSES])
def test_a_gauge_of_the_moment_moves_with_its_own_fault(
    fault: str, status: PipelineStatus, names: set[str]
) -> None:
    metrics = PipelineMetrics("cards", ["risk"])
    metrics.observe(AT_REST)
    before = values(metrics.registry)
    metrics.observe(status)
    assert moved(before, values(metrics.registry)) == names


def shard(**fields: Any) -> EpochEntry:
    return epoch(shards=[msgspec.structs.replace(SHARD, **fields)])


def epoch(**fields: Any) -> EpochEntry:
    return msgspec.structs.replace(EPOCH, **fields)


def call(**fields: Any) -> EpochEntry:
    return shard(calls={"score": msgspec.structs.replace(CALLED, **fields)})


EPOCHS: list[tuple[str, EpochEntry, set[str]]] = [
    ("nothing", EPOCH, set()),
    ("more events", shard(events=19), {"events_total"}),
    ("more outputs", shard(outputs=9), {"outputs_total"}),
    ("late events", shard(late=2), {"late_total"}),
    ("events twice", shard(duplicates=2), {"duplicates_total"}),
    ("bad events", shard(poisoned=2), {"poisoned_total"}),
    ("timers", shard(timers=2), {"timers_total"}),
    ("more keys", shard(keys=5), {"keys"}),
    ("more state", shard(state_bytes=500), {"state_bytes"}),
    ("more changes", shard(delta_bytes=500), {"state_delta_bytes_total"}),
    ("a snapshot", shard(written_bytes=500), {"state_written_bytes_total"}),
    ("a store that was lost", shard(rebuilt_bytes=500, restore_s=1.5),
     {"restore_bytes_total", "state_restore_seconds"}),
    ("a slow function", shard(operator_ms=80.0), {"operator_seconds", "epoch_part_seconds"}),
    ("a slow sink", epoch(sink_ms={"rows": 700.0}),
     {"commit_latency_seconds_sum", "commit_latency_seconds_bucket", "epoch_part_seconds"}),
    ("a slow checkpoint", epoch(finished_ms=45_000),
     {"checkpoint_duration_seconds_sum", "checkpoint_duration_seconds_bucket"}),
    ("a slow shuffle", epoch(run_ms=900.0), {"epoch_part_seconds"}),
    ("a watermark that stands", epoch(end=msgspec.structs.replace(END, watermarks=[1_000])),
     {"watermark_delay_seconds"}),
    ("an endpoint that fails", call(attempts=7, failed_attempts=2),
     {"call_attempts_total", "call_failed_attempts_total"}),
    ("no answer", call(failures=1), {"call_failures_total"}),
    ("a slow endpoint", call(p99_ms=900), {"call_p99_seconds"}),
    ("a breaker", call(breaker="open"), {"call_breakers_open"}),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "entry", "names"), EPOCHS, ids=[each[0] for each in EPOCHS])
def test_what_an_epoch_tells_moves_with_its_own_fault(
    fault: str, entry: EpochEntry, names: set[str]
) -> None:
    """Beside a pipeline whose epoch is as all before."""
    after = []
    for second in (EPOCH, entry):
        metrics = PipelineMetrics("cards", ["risk"])
        metrics.take(EPOCH)
        metrics.take(second)
        after.append(values(metrics.registry))
    assert moved(*after) == names


def contract(end: int = 20, max_restore_s: float = 100_000.0, **pace: float) -> Any:
    terms = Terms("cards", [], 0, max_restore_s, {})
    tails = {("t", 0): PartitionTail(0, end, 100 * end)}
    known = Pace(**{"input_per_s": 1.0, "busy_per_s": 100.0, "saturated": True, **pace})  # type: ignore[arg-type]
    return compute(EPOCH, tails, terms, [], oldest_clock_ms=0, now_ms=6_000, pace=known)


ESTIMATE = {"contract_restore_estimate_seconds", "contract_restore_part_seconds"}
REPLAY = ESTIMATE | {
    "contract_replay_records", "contract_replay_bytes", "contract_recovery_point_seconds",
}  # fmt: skip
CONTRACTS: list[tuple[str, Any, set[str]]] = [
    ("nothing", contract(), set()),
    ("more to replay", contract(5_000), REPLAY),
    ("a larger budget", contract(max_restore_s=200_000.0), {"contract_budget_seconds"}),
    ("a budget that is breached", contract(max_restore_s=0.001),
     {"contract_budget_seconds", "contract_budget_breached"}),
    ("more input than can be processed", contract(input_per_s=900.0),
     {"contract_input_records_per_second", "contract_missing_records_per_second",
      "contract_budget_breached", "contract_recovery_point_seconds", *ESTIMATE}),
    ("a slower pipeline", contract(busy_per_s=50.0),
     {"contract_capacity_records_per_second", *ESTIMATE}),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "found", "names"), CONTRACTS, ids=[c[0] for c in CONTRACTS])
def test_what_a_contract_tells_moves_with_its_own_fault(
    fault: str, found: Any, names: set[str]
) -> None:
    metrics = PipelineMetrics("cards", ["risk"])
    metrics.take_contract(contract())
    before = values(metrics.registry)
    metrics.take_contract(found)
    assert moved(before, values(metrics.registry)) == names


def test_what_is_tried_again_is_counted_by_what_it_was() -> None:
    def failing() -> None:
        raise StoreUnavailable("Down.")

    metrics = PipelineMetrics("cards", ["risk"])
    before = values(metrics.registry)
    with pytest.raises(StoreUnavailable):
        retried(failing, ManualClock(), RetryPolicy(tries=3))
    after = values(metrics.registry)
    assert moved(before, after) == {"retries_total"}
    (key,) = [each for each in after if after[each] != before[each]]
    assert (key[1], after[key] - before[key]) == ((("component", "object_store"),), 2.0)
    assert set(retries.counts()) == set(retries.COMPONENTS)


def test_every_metric_of_a_pipeline_has_its_fault() -> None:
    names: Iterable[set[str]] = (each[2] for each in (*STATUSES, *EPOCHS, *CONTRACTS))
    tested = set[str]().union(*names, {"retries_total", "epoch"})
    there = {
        family.name.removeprefix("catchwater_") + ("_total" if family.type == "counter" else "")
        for family in PipelineMetrics("cards", ["risk"]).registry.collect()
    }
    assert {name for name in there if not any(each.startswith(name) for each in tested)} == set()


def test_the_newest_results_of_drills_beside_the_file_are_shown(tmp_path: Path) -> None:
    assert drilled(tmp_path / "drills") == []
    (tmp_path / "drills").mkdir()
    for at, verdict, restore_s in ((1, "pass", 9.0), (3, "fail", None), (2, "pass", 8.0)):
        result = {
            "drill": "kill-task",
            "verdict": verdict,
            "started_ms": at,
            "restore_s": restore_s,
        }
        (tmp_path / "drills" / f"{at}.json").write_bytes(msgspec.json.encode(result))
    (tmp_path / "drills" / "torn.json").write_text("{")
    assert drilled(tmp_path / "drills") == [Drilled("kill-task", "fail", 3, 8.0, None, 2)]
