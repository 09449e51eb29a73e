"""What makes a backfill of a pipeline: its name, its place, its range."""

from dataclasses import replace
from functools import partialmethod
from pathlib import Path

import pytest

from catchwater.clock import SYSTEM, Clock
from catchwater.pipeline.change.rebuild import CannotRebuild, tables_of
from catchwater.pipeline.run import backfill
from catchwater.pipeline.run.backfill import (
    BadBackfill,
    Bounds,
    backfill_of,
    begin,
    begun,
    progress,
    resolve,
)
from catchwater.pipeline.run.config import AVAILABLE_NOW, PipelineConfig
from catchwater.recovery import handover
from catchwater.replay.options import SourceOptions
from catchwater.sinks.config import AT_LEAST_ONCE, parse

SOURCE = {
    "kafka.bootstrap.servers": "127.0.0.1:1",
    "subscribe": "orders",
    "startingTimestamp": "17",
    "maxOffsetsPerTrigger": "100",
}
BOUNDS = Bounds({"orders": {"0": 5, "1": 0}}, {"orders": {"0": 25, "1": 3}})


@pytest.fixture
def live(tmp_path: Path) -> PipelineConfig:
    return PipelineConfig(
        functions=("m:F",),
        checkpoint=tmp_path / "checkpoint",
        source=SOURCE,
        sinks={},
        name="sales",
        state="s3://bucket/state",
        local=tmp_path / "local",
        spare=True,
        metrics="127.0.0.1:9",
    )


def test_a_backfill_shares_nothing_that_is_kept_with_the_pipeline(live: PipelineConfig) -> None:
    made = backfill_of(live, "june")
    assert made.name == "sales.june"
    assert made.checkpoint == live.checkpoint.with_name("checkpoint.backfills") / "june"
    assert (made.local, made.state) == (
        live.local / "backfills" / "june",
        "s3://bucket/state/backfills",
    )  # type: ignore[operator]
    assert (made.trigger, made.spare, made.metrics) == (AVAILABLE_NOW, False, None)
    assert "startingTimestamp" not in made.source, "where the pipeline began is not its business"
    assert made.source["maxOffsetsPerTrigger"] == "100"
    assert made.until is None


def test_the_range_is_kept_for_whoever_goes_on(live: PipelineConfig) -> None:
    begin(backfill_of(live, "june"), BOUNDS)
    made = backfill_of(live, "june")
    assert begun(made.checkpoint) == BOUNDS
    assert made.source["startingOffsets"] == '{"orders":{"0":5,"1":0}}'
    assert made.until == BOUNDS.end
    assert progress(made.checkpoint) == (0, 23)
    assert begun(backfill_of(live, "july").checkpoint) is None


def test_it_stays_where_it_is_when_another_checkpoint_takes_over(
    live: PipelineConfig, tmp_path: Path
) -> None:
    shadow = tmp_path / "checkpoint.2"
    handover.follow(shadow, live.checkpoint)
    upgraded = replace(live, checkpoint=shadow)
    assert backfill_of(upgraded, "june").checkpoint == backfill_of(live, "june").checkpoint


@pytest.mark.parametrize("label", ["", "June", "a/b", "-a", "x" * 64])
def test_a_label_that_is_no_name_is_refused(live: PipelineConfig, label: str) -> None:
    with pytest.raises(BadBackfill, match="cannot name a backfill"):
        backfill_of(live, label)


@pytest.mark.parametrize(
    ("since", "said"), [("june", "no place in a log"), ("2026-06-01T00:00:00", "no time zone")]
)
def test_a_place_that_says_nothing_is_refused(live: PipelineConfig, since: str, said: str) -> None:
    with pytest.raises(BadBackfill, match=said):
        resolve(live, since, "latest", SYSTEM)


def test_a_time_zone_is_hinted_at_in_a_form_that_is_taken(live: PipelineConfig) -> None:
    with pytest.raises(BadBackfill) as caught:
        resolve(live, "2026-06-01", "latest", SYSTEM)
    assert caught.value.hint == "Is it 2026-06-01T00:00:00Z?"


class Log:
    """A subscription to one partition that holds the offsets 5 to 24."""

    def __init__(self, options: SourceOptions, clock: Clock, **_: float) -> None:
        self._ending = options.ending

    def starting(self, default: int) -> dict[tuple[str, int], int]:
        return {("orders", 0): 5}

    earliest = partialmethod(starting, 0)

    def latest(self) -> dict[tuple[str, int], int]:
        return {("orders", 0): 25}

    def ending(self) -> dict[tuple[str, int], int]:
        return dict(self._ending.each or {})

    def close(self) -> None:
        """There is nothing to close."""


def test_a_range_beyond_the_end_is_refused_before_it_is_fixed(
    live: PipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill, "Subscription", Log)
    whole = resolve(live, "earliest", '{"orders": {"0": 25}}', SYSTEM)
    assert whole == Bounds({"orders": {"0": 5}}, {"orders": {"0": 25}})
    with pytest.raises(BadBackfill, match="ends before where the backfill is to end in orders-0"):
        resolve(live, "earliest", '{"orders": {"0": 26}}', SYSTEM)
    # Nobody wrote before 1970, so a range that begins there begins where the log does.
    assert resolve(live, "1950-01-01T00:00:00Z", '{"orders": {"0": 25}}', SYSTEM) == whole
    with pytest.raises(BadBackfill, match="There is no record") as empty:
        resolve(live, "earliest", '{"orders": {"0": 5}}', SYSTEM)
    assert "--dry-run" in str(empty.value.hint)


def test_what_cannot_exchange_all_it_holds_is_not_rebuilt(live: PipelineConfig) -> None:
    table = parse("rows", {"kind": "sqlite", "path": "rows.db", "table": "sales"})
    tables = replace(live, sinks={"rows": table})
    assert tables_of(tables, "after-fix") == {"rows": "sales__after_fix"}
    begin(backfill_of(tables, "after-fix"), replace_bounds(BOUNDS, {"rows": "sales__after_fix"}))
    assert backfill_of(tables, "after-fix").sinks["rows"].options.table == "sales__after_fix"
    with pytest.raises(CannotRebuild, match=r"'alerts' \(log\)"):
        tables_of(
            replace(live, sinks={"rows": table, "alerts": parse("alerts", {"topic": "alerts"})}),
            "after-fix",
        )


def test_a_label_that_makes_too_long_a_name_is_refused_before_anything_is_pinned(
    live: PipelineConfig,
) -> None:
    table = parse("rows", {"kind": "postgres", "url": "postgresql://h/d", "table": "sales"})
    one = replace(live, sinks={"rows": table})
    assert tables_of(one, "a" * 33) == {"rows": f"sales__{'a' * 33}"}
    with pytest.raises(CannotRebuild, match="too long") as refused:
        tables_of(one, "a" * 34)
    assert refused.value.hint == "Choose a shorter label."


def test_a_table_without_marks_is_not_rebuilt(live: PipelineConfig) -> None:
    """Marks say which of two tables is which; without, the one made anew was thrown away."""
    table = parse(
        "rows", {"kind": "sqlite", "path": "rows.db", "table": "sales", "delivery": AT_LEAST_ONCE}
    )
    with pytest.raises(CannotRebuild, match="'rows' deliver at least once"):
        tables_of(replace(live, sinks={"rows": table}), "after-fix")


def replace_bounds(bounds: Bounds, tables: dict[str, str]) -> Bounds:
    return Bounds(bounds.start, bounds.end, tables)
