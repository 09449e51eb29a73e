"""What makes a backfill of a pipeline: its name, its place, its range."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from catchwater.clock import SYSTEM, Clock
from catchwater.pipeline.change.rebuild import CannotRebuild, all_of_it, tables_of
from catchwater.pipeline.run import backfill
from catchwater.pipeline.run.backfill import (
    BadBackfill,
    Bounds,
    backfill_of,
    begin,
    begun,
    hold,
    progress,
    resolve,
)
from catchwater.pipeline.run.config import AVAILABLE_NOW, PipelineConfig
from catchwater.recovery import handover
from catchwater.replay.control import ControlRefused
from catchwater.replay.offsets import HistoryLost
from catchwater.replay.options import BadOption, Position, SourceOptions, parse_options
from catchwater.replay.plan import Missing, Slice
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


KEY = ("orders", 0)


class Log:
    """A subscription to one partition that holds the offsets up to 24 from `first` on.

    A control API, too, whose retention takes up to `moves` as the first pin is set.
    """

    first: ClassVar[int] = 5
    table: ClassVar[int | None] = None
    """Where the topic's table begins."""
    moves: ClassVar[int] = 0
    pins: ClassVar[list[tuple[str, Any]]] = []

    def __init__(self, options: SourceOptions, clock: Clock = SYSTEM, **_: float) -> None:
        self._options = options

    def starting(self, default: int) -> dict[tuple[str, int], int]:
        starting = self._options.starting
        if starting is not None and starting.of_table and self.table is not None:
            return {KEY: self.table}
        return {KEY: self.first} | dict((starting and starting.each) or {})

    def earliest(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return dict.fromkeys(partitions, self.first)

    def in_tables(self, missing: list[Missing]) -> tuple[list[Slice], HistoryLost | None]:
        assert all(each.start < each.end <= self.first for each in missing)
        if not missing:
            return [], None
        if self.table is None or missing[0].start < self.table:
            return [], HistoryLost(missing, "The log does not hold", "Have a table.")
        return [Slice(*each, files=("file:///f",)) for each in missing], None

    def by_tables(
        self, by_log: dict[tuple[str, int], int], position: Position | None
    ) -> dict[tuple[str, int], int]:
        """A record was written each millisecond."""
        since_ms = position.timestamp_ms if position else None
        if since_ms is None or self.table is None or since_ms >= self.first:
            return {}
        return {KEY: max(self.table, since_ms)}

    def latest(self) -> dict[tuple[str, int], int]:
        return {KEY: 25}

    def ending(self) -> dict[tuple[str, int], int]:
        return dict(self._options.ending.each or {KEY: 25}) if self._options.ending else {}

    def close(self) -> None:
        """There is nothing to close."""

    def set_pin(self, pin_id: str, content: Any) -> None:
        if self.moves:
            Log.first, Log.moves = self.moves, 0
        [place] = content["positions"]
        if place["offset"] < self.first:
            gap = {"partition": 0, "start": place["offset"], "end": self.first}
            raise ControlRefused(416, {"error": "OFFSET_OUT_OF_RANGE", "missing": [gap]})
        self.pins.append((pin_id, place["offset"]))


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> type[Log]:
    monkeypatch.setattr(backfill, "Subscription", Log)
    Log.first, Log.table, Log.moves, Log.pins = 5, None, 0, []
    return Log


def test_what_the_log_has_deleted_is_in_the_range_where_the_table_has_it(
    live: PipelineConfig, log: type[Log]
) -> None:
    with pytest.raises(BadBackfill, match="orders-0 offsets 2 to 4") as lost:
        resolve(live, '{"orders": {"0": 2}}', "latest", SYSTEM)
    assert lost.value.hint == "Choose a later start, or earliest. Have a table."
    log.table = 1
    bounds = resolve(live, "table", "latest", SYSTEM)
    assert bounds == Bounds({"orders": {"0": 1}}, {"orders": {"0": 25}}, log={"orders": {"0": 5}})
    assert (bounds.records, bounds.from_tables) == (24, {KEY: (1, 5)})
    begin(backfill_of(live, "june"), bounds)
    made = backfill_of(live, "june")
    assert made.source["startingOffsets"] == '{"orders":{"0":1}}'
    assert made.from_tables == {KEY: (1, 5)}
    # All of it lies in the table, or nothing does.
    assert resolve(live, "table", '{"orders": {"0": 3}}', SYSTEM).held == {"orders": {"0": 5}}
    assert resolve(live, "earliest", "latest", SYSTEM).from_tables == {}
    log.first = 0
    log.table = None
    assert resolve(live, "table", "latest", SYSTEM).from_tables == {}


def test_a_time_may_lie_in_the_table(live: PipelineConfig, log: type[Log]) -> None:
    log.table = 1
    since, until = "1970-01-01T00:00:00.002Z", "1970-01-01T00:00:00.004Z"
    bounds = resolve(live, since, until, SYSTEM)
    assert bounds == Bounds({"orders": {"0": 2}}, {"orders": {"0": 4}}, log={"orders": {"0": 5}})
    assert resolve(live, since, "latest", SYSTEM).from_tables == {KEY: (2, 5)}
    log.table = None
    assert resolve(live, since, "latest", SYSTEM).start == {"orders": {"0": 5}}


def test_the_log_is_held_from_where_it_goes_on_by_then(
    live: PipelineConfig, log: type[Log]
) -> None:
    log.table = 0
    bounds = resolve(live, "table", "latest", SYSTEM)
    log.moves = 9
    held = hold(backfill_of(live, "june"), bounds, Log(parse_options(SOURCE)))  # type: ignore[arg-type]
    assert held == Bounds(bounds.start, bounds.end, log={"orders": {"0": 9}})
    assert log.pins == [("sales.june/range", 9)]


def test_a_range_that_retention_takes_before_it_is_held_is_refused(
    live: PipelineConfig, log: type[Log]
) -> None:
    bounds = resolve(live, "earliest", "latest", SYSTEM)
    log.moves = 9
    with pytest.raises(BadBackfill, match="orders-0 offsets 5 to 8"):
        hold(backfill_of(live, "june"), bounds, Log(parse_options(SOURCE)))  # type: ignore[arg-type]
    assert not log.pins


def test_a_rebuild_reads_everything_that_there_is(
    live: PipelineConfig,
    log: type[Log],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    log.table = 0
    assert all_of_it(live, SYSTEM).start == {"orders": {"0": 0}}
    lacks = HistoryLost([Missing("orders", 0, 0, 5)], "The table has only as fields")
    monkeypatch.setattr(Log, "in_tables", lambda self, missing: ([], lacks if missing else None))
    assert all_of_it(live, SYSTEM).start == {"orders": {"0": 5}}
    assert "begins where the log does. The table has only as fields" in caplog.text

    def refused(self: Log, default: int) -> Any:
        if self._options.starting.of_table:
            raise BadOption("The table is not the topic.", hint="Begin at earliest.")
        return {KEY: 5}

    monkeypatch.setattr(Log, "starting", refused)
    assert all_of_it(live, SYSTEM).start == {"orders": {"0": 5}}
    assert "begins where the log does. The table is not the topic." in caplog.text


def test_a_range_beyond_the_end_is_refused_before_it_is_fixed(
    live: PipelineConfig, log: type[Log]
) -> None:
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
