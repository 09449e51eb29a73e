"""What Prometheus is told of a pipeline."""

import urllib.request

import pytest
from prometheus_client import generate_latest
from tests.ports import free_port

from catchwater.config import ConfigError
from catchwater.pipeline.run.metrics import PipelineMetrics
from catchwater.recovery.contract import PartitionTail, Terms, compute
from catchwater.recovery.estimate import Pace
from catchwater.recovery.ledger import CallEpoch, EpochEntry, ShardEpoch, SourceOffset


def entry(epoch: int) -> EpochEntry:
    end = SourceOffset(epoch, {}, [2_000], 5_000)
    shards = [
        ShardEpoch(
            0,
            events=9,
            keys=3,
            state_bytes=100,
            delta_bytes=10,
            operator_ms=20.0,
            calls={"score": CallEpoch(5, 6, 1, 0, 40, "open")},
        ),
        ShardEpoch(
            1, events=1, keys=4, state_bytes=50, delta_bytes=5, operator_ms=80.0, restore_s=1.5
        ),
        ShardEpoch(0, stage=1, events=2, poisoned=1),
    ]
    return EpochEntry(epoch, end, end, shards, {}, 5_250, run_ms=100.0, sink_ms={"rows": 7.0})


def test_counts_add_up_and_sizes_are_those_of_the_last_epoch() -> None:
    metrics = PipelineMetrics("cards", ["risk", "report"])
    metrics.take(entry(3))
    metrics.take(entry(4))
    told = generate_latest(metrics.registry).decode().splitlines()
    for line in [
        'catchwater_events_total{function="risk",pipeline="cards"} 20.0',
        'catchwater_poisoned_total{function="report",pipeline="cards"} 2.0',
        'catchwater_keys{function="risk",pipeline="cards"} 7.0',
        'catchwater_state_bytes{function="risk",pipeline="cards"} 150.0',
        'catchwater_state_delta_bytes_total{function="risk",pipeline="cards"} 30.0',
        'catchwater_state_restore_seconds{function="risk",pipeline="cards"} 1.5',
        'catchwater_operator_seconds{function="risk",pipeline="cards",quantile="0.5"} 0.02',
        'catchwater_operator_seconds{function="risk",pipeline="cards",quantile="0.99"} 0.08',
        'catchwater_call_attempts_total{call="score",function="risk",pipeline="cards"} 12.0',
        'catchwater_call_p99_seconds{call="score",function="risk",pipeline="cards"} 0.04',
        'catchwater_call_breakers_open{call="score",function="risk",pipeline="cards"} 1.0',
        'catchwater_epoch{pipeline="cards"} 4.0',
        'catchwater_checkpoint_duration_seconds_sum{pipeline="cards"} 0.5',
        'catchwater_checkpoint_duration_seconds_bucket{le="0.25",pipeline="cards"} 2.0',
        'catchwater_checkpoint_duration_seconds_bucket{le="0.1",pipeline="cards"} 0.0',
        'catchwater_commit_latency_seconds_bucket{le="0.01",pipeline="cards"} 2.0',
        'catchwater_watermark_delay_seconds{pipeline="cards"} 3.0',
        'catchwater_epoch_part_seconds{part="source",pipeline="cards"} 0.02',
        'catchwater_epoch_part_seconds{part="function",pipeline="cards"} 0.08',
        'catchwater_epoch_part_seconds{part="sinks",pipeline="cards"} 0.007',
    ]:
        assert line in told


def test_an_address_that_cannot_be_listened_at_is_told() -> None:
    metrics = PipelineMetrics("cards", ["risk"])
    with (
        pytest.raises(ConfigError, match="metrics = 'nowhere' cannot be listened at"),
        metrics.served("nowhere"),
    ):
        pass


def test_they_are_served_for_as_long_as_the_pipeline_runs() -> None:
    address = f"127.0.0.1:{free_port()}"
    for _ in range(2):  # one that is started again in the same process wants the port again
        with (
            PipelineMetrics("cards", ["risk"]).served(address),
            urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer,
        ):
            assert b"catchwater_events_total" in answer.read()


def exported_for(pace: Pace) -> list[str]:
    """The lines that Prometheus reads after a contract with both budgets."""
    end = SourceOffset(3, {"t": {"0": 600}}, [2_000], 5_000)
    done = EpochEntry(3, end, end, [ShardEpoch(0, state_bytes=0)], {}, 5_250)
    terms = Terms("cards", [], 0, 30.0, {}, max_replay_s=5.0)
    tails = {("t", 0): PartitionTail(0, 1000, 100_000)}
    contract = compute(done, tails, terms, [], oldest_clock_ms=0, now_ms=6_000, pace=pace)
    metrics = PipelineMetrics("cards", ["risk"])
    metrics.take_contract(contract)
    return generate_latest(metrics.registry).decode().splitlines()


def test_the_newest_contract_and_its_budgets_are_told() -> None:
    told = exported_for(Pace(input_per_s=100.0, interval_s=2.0))
    for line in [
        'catchwater_contract_restore_estimate_seconds{bound="estimate",pipeline="cards"} 22.06',
        'catchwater_contract_restore_part_seconds{part="infrastructure",pipeline="cards"} 22.0',
        'catchwater_contract_input_records_per_second{pipeline="cards"} 100.0',
        'catchwater_contract_replay_records{pipeline="cards"} 400.0',
        'catchwater_contract_recovery_point_seconds{pipeline="cards"} 6.0',
        'catchwater_contract_budget_seconds{budget="restore",pipeline="cards"} 30.0',
        'catchwater_contract_budget_breached{budget="restore",pipeline="cards"} 1.0',
        'catchwater_contract_budget_breached{budget="recovery point",pipeline="cards"} 2.0',
    ]:
        assert line in told, line


def test_a_restore_that_never_catches_up_takes_infinitely_long() -> None:
    told = exported_for(Pace(input_per_s=500.0, busy_per_s=400.0, saturated=True))
    for line in [
        'catchwater_contract_restore_estimate_seconds{bound="estimate",pipeline="cards"} +Inf',
        'catchwater_contract_missing_records_per_second{pipeline="cards"} 100.0',
        'catchwater_contract_budget_breached{budget="restore",pipeline="cards"} 2.0',
    ]:
        assert line in told, line
