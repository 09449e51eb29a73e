"""Seven days of what can be plotted, and of what happened: small, bounded, for the page alone.

The last hour is kept in memory as it was sampled, and by the minute where an earlier process did
that. Once a minute each series' mean and peak go into
an SQLite file in the broker's data directory, in one transaction: for a day by the minute, for
seven days by ten minutes. With `MAX_SERIES` series that is some 35 MB. A file that cannot be
opened is put aside; while it cannot be written, `problem` says why, and memory goes on.

Times are milliseconds since 1970. `read`, `flush`, `note` and `events` block.
"""

import sqlite3
import threading
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from catchwater.web.of_pipelines import Event

MAX_SERIES = 500
MAX_EVENTS = 2_000
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
KEPT_MS = 7 * DAY_MS
MINUTE_MS, TEN_MS = 60_000, 600_000
_STEPS = {MINUTE_MS: DAY_MS + 2 * HOUR_MS, TEN_MS: KEPT_MS}
"""Step to how long it is kept."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS series (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS points (
  step INTEGER NOT NULL, series INTEGER NOT NULL, at INTEGER NOT NULL,
  mean REAL NOT NULL, peak REAL NOT NULL, PRIMARY KEY (step, series, at)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (
  id INTEGER PRIMARY KEY, at INTEGER NOT NULL, subject TEXT NOT NULL, what TEXT NOT NULL,
  mark TEXT NOT NULL, command TEXT NOT NULL DEFAULT ''
);
"""
_PUT = """
INSERT INTO points VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET mean = (mean + excluded.mean) / 2, peak = max(peak, excluded.peak)
"""
"""A step that a restart has cut in two comes twice."""
_COMMAND = "ALTER TABLE events ADD COLUMN command TEXT NOT NULL DEFAULT ''"
"""Of a file that an earlier version has begun."""


class Plot(NamedTuple):
    """Series over the same times; None where one has no value."""

    times_ms: list[int]
    means: dict[str, list[float | None]]
    peaks: dict[str, list[float | None]]


class _Sum:
    """A step of a series that is not over yet."""

    __slots__ = ("at", "count", "peak", "total")

    def __init__(self, at: int) -> None:
        self.at = at
        self.total = self.peak = 0.0
        self.count = 0

    def add(self, value: float) -> None:
        self.peak = value if not self.count else max(self.peak, value)
        self.total += value
        self.count += 1


class History:
    """The samples and events of one broker, until `close`."""

    def __init__(self, path: Path | None) -> None:
        """`path` is the file; None keeps all in memory."""
        self.problem = ""
        self.left_out = 0
        """Values that were not kept, because there are `MAX_SERIES` series already."""
        self._lock = threading.Lock()
        self._recent: dict[str, array[float]] = {}
        """By series: time and value, one after the other, oldest first."""
        self._sums: dict[tuple[int, str], _Sum] = {}
        self._done: list[tuple[int, str, int, float, float]] = []
        self._ids: dict[str, int] = {}
        self._db = self._open(path)

    def _open(self, path: Path | None) -> sqlite3.Connection:
        if path is not None:
            for _ in range(2):
                try:
                    return self._connect(str(path))
                except sqlite3.OperationalError as error:  # no place, no permission
                    self.problem = f"{path} cannot be used: {error}."
                    break
                except sqlite3.DatabaseError as error:  # this is no database
                    self.problem = f"{path} cannot be used: {error}."
                    with suppress(OSError):
                        path.replace(path.with_name(f"{path.name}.damaged"))
        problem, db = self.problem, self._connect(":memory:")
        self.problem = problem
        return db

    def _connect(self, name: str) -> sqlite3.Connection:
        db = sqlite3.connect(name, isolation_level=None, check_same_thread=False)
        try:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=NORMAL")
            db.executescript(_SCHEMA)
            if "command" not in {row[1] for row in db.execute("PRAGMA table_info(events)")}:
                db.execute(_COMMAND)
            self._ids = {name: number for number, name in db.execute("SELECT id, name FROM series")}
            self.problem = ""
        except sqlite3.Error:
            db.close()
            raise
        return db

    def close(self) -> None:
        """Write what there is, and close the file."""
        self._done += [
            (step, name, each.at, each.total / each.count, each.peak)
            for (step, name), each in self._sums.items()
        ]
        self._sums.clear()
        self.flush()
        with self._lock:
            self._db.close()

    def add(self, at_ms: int, values: Mapping[str, float]) -> None:
        """Samples of one moment. Does not block."""
        for name, value in values.items():
            kept = self._recent.get(name)
            if kept is None:
                if len(self._recent) >= MAX_SERIES:
                    self.left_out += 1
                    continue
                kept = self._recent[name] = array("d")
            kept.extend((at_ms, value))
            if kept[0] < at_ms - HOUR_MS - MINUTE_MS:
                del kept[: 2 * _first_after(kept, at_ms - HOUR_MS)]
            for step in _STEPS:
                self._sum(step, name, at_ms - at_ms % step, value)
        if at_ms % MINUTE_MS < 5_000:
            self._forget_silent(at_ms)

    def _sum(self, step: int, name: str, at: int, value: float) -> None:
        now = self._sums.get((step, name))
        if now is not None and now.at != at:
            self._done.append((step, name, now.at, now.total / now.count, now.peak))
            now = None
        if now is None:
            now = self._sums[step, name] = _Sum(at)
        now.add(value)

    def _forget_silent(self, at_ms: int) -> None:
        """Make room for others where a series has had no value for an hour."""
        for name in [n for n, kept in self._recent.items() if kept[-2] < at_ms - HOUR_MS]:
            del self._recent[name]
            for step in _STEPS:
                gone = self._sums.pop((step, name), None)
                if gone is not None:
                    mean = gone.total / gone.count
                    self._done.append((step, name, gone.at, mean, gone.peak))

    def flush(self) -> None:
        """Write what is complete, and delete what is too old."""
        done, self._done = self._done, []
        if not done:
            return
        newest = max(row[2] for row in done)
        with self._lock:
            try:
                self._db.execute("BEGIN")
                for step, name, at, mean, peak in done:
                    row = (step, self._id(name), at, mean, peak)
                    self._db.execute(_PUT, row)
                if newest % TEN_MS == 0:
                    self._prune(newest)
                self._db.execute("COMMIT")
                self.problem = ""
            except sqlite3.Error as error:
                self.problem = f"The history is not written: {error}."
                with suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")

    def _id(self, name: str) -> int:
        found = self._ids.get(name)
        if found is None:
            found = self._db.execute("INSERT INTO series (name) VALUES (?)", (name,)).lastrowid
            assert found is not None
            self._ids[name] = found
        return found

    def _prune(self, newest: int) -> None:
        for step, kept_ms in _STEPS.items():
            for number in self._ids.values():
                old = (step, number, newest - kept_ms)
                self._db.execute("DELETE FROM points WHERE step = ? AND series = ? AND at < ?", old)
        gone = self._db.execute(
            "DELETE FROM series WHERE id NOT IN (SELECT DISTINCT series FROM points) RETURNING name"
        )
        for (name,) in gone.fetchall():
            self._ids.pop(name, None)
        self._db.execute("DELETE FROM events WHERE at < ?", (newest - KEPT_MS,))

    def read(self, names: Iterable[str], span_ms: int, now_ms: int) -> Plot:
        """These series over the last `span_ms`, as finely as that is kept."""
        found = {name: self._points(name, span_ms, now_ms) for name in names}
        times = sorted({at for points in found.values() for at in points})
        means: dict[str, list[float | None]] = {}
        peaks: dict[str, list[float | None]] = {}
        for name, points in found.items():
            both = [points.get(at, (None, None)) for at in times]
            means[name], peaks[name] = [a for a, _ in both], [b for _, b in both]
        return Plot(times, means, peaks)

    def _points(self, name: str, span_ms: int, now_ms: int) -> dict[int, tuple[float, float]]:
        since_ms = now_ms - span_ms
        recent = self._recent.get(name, array("d"))
        if span_ms <= HOUR_MS:
            pairs = zip(recent[::2], recent[1::2], strict=True)
            sampled = {round(at): (value, value) for at, value in pairs if at >= since_ms}
            first = min(sampled, default=now_ms)
            if first - since_ms <= 2 * MINUTE_MS:
                return sampled
            # What was sampled before this process began is there by the minute.
            before = self._kept(name, MINUTE_MS, since_ms)
            return {at: both for at, both in before.items() if at <= first - MINUTE_MS} | sampled
        return self._kept(name, MINUTE_MS if span_ms <= DAY_MS else TEN_MS, since_ms)

    def _kept(self, name: str, step: int, since_ms: int) -> dict[int, tuple[float, float]]:
        """Mean and peak of each step."""
        with self._lock, suppress(sqlite3.Error):
            rows = self._db.execute(
                "SELECT at, mean, peak FROM points JOIN series ON series.id = points.series "
                "WHERE step = ? AND name = ? AND at >= ? ORDER BY at",
                (step, name, since_ms),
            )
            points = {at: (mean, peak) for at, mean, peak in rows}
            now = self._sums.get((step, name))
            if now is not None:
                points[now.at] = now.total / now.count, now.peak
            return points
        return {}

    def trend(self, name: str, now_ms: int, steps: int = 60) -> list[float | None]:
        """The peaks of the last hour in so many steps, oldest first."""
        peaks: list[float | None] = [None] * steps
        width_ms = HOUR_MS / steps
        for at, (_, peak) in self._points(name, HOUR_MS, now_ms).items():
            step = min(steps - 1, max(0, int((at - now_ms + HOUR_MS) / width_ms)))
            before = peaks[step]
            peaks[step] = peak if before is None else max(peak, before)
        return peaks

    def note(self, events: Sequence[Event]) -> None:
        """Keep what happened."""
        with self._lock, suppress(sqlite3.Error):
            rows = [(e.at_ms, e.of[:200], e.what[:500], e.mark, e.command[:500]) for e in events]
            self._db.executemany(
                "INSERT INTO events (at, subject, what, mark, command) VALUES (?, ?, ?, ?, ?)", rows
            )
            self._db.execute(
                "DELETE FROM events WHERE id <= (SELECT max(id) FROM events) - ?", (MAX_EVENTS,)
            )

    def events(self, of: str | None = None, most: int = 200) -> list[Event]:
        """What happened, newest first; of one subject, if it is named."""
        with self._lock, suppress(sqlite3.Error):
            rows = self._db.execute(
                "SELECT at, subject, what, mark, command FROM events "
                "WHERE ?1 IS NULL OR subject = ?1 ORDER BY at DESC, id DESC LIMIT ?2",
                (of, most),
            )
            return [Event(*row) for row in rows]
        return []


def _first_after(kept: "array[float]", since_ms: float) -> int:
    """How many samples are older."""
    at = 0
    while 2 * at < len(kept) and kept[2 * at] < since_ms:
        at += 1
    return at
