"""What `catchwater pipeline status` shows a person: a page of 80 columns, drawn once or repeatedly.

Every line is made from what `--json` prints, so that both say the same.
"""

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from shutil import get_terminal_size
from textwrap import wrap
from typing import Any, NoReturn

import typer

from catchwater.cli.console import spaced

WIDTH = 80
_EVERY_S = 2.0
_INDENT = 14
_NAME = 20
"""A longer name is cut, in a table."""
_NO_WATERMARK = "none yet; an epoch moves it for the next one"
_MARKS = {"pass": "", "warn": " (may be breached)", "fail": " (breached)"}
_VERDICTS = ("correct", "recoverable", "fresh")
_COMMAND = ""
"""The name of a row that is to be copied."""
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def page(status: dict[str, Any], now_ms: int) -> list[str]:
    """The lines of a status."""
    lines = [*_head(status, now_ms)]
    for table in (
        _catching_up(status),
        _functions(status),
        _sinks(status),
        _epochs(status),
        status["problems"],
    ):
        lines += ["", *table] if table else []
    return lines


def watch(draw: Callable[[], list[str]]) -> NoReturn:
    """Draw it again every two seconds, until Ctrl-C; into a pipe one page follows the other."""
    from catchwater.clock import SYSTEM

    while True:
        lines = draw()
        if sys.stdout.isatty():
            size = get_terminal_size()
            shown = [line[: size.columns] for line in lines[: size.lines - 1]]
            typer.echo("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in shown) + "\x1b[J", nl=False)
        else:
            typer.echo("\n".join(lines))
        sys.stdout.flush()
        SYSTEM.pause(_EVERY_S)


def iso(time_ms: int | None) -> str:
    """A time of day in UTC, to the second; nothing for what is no time yet."""
    if time_ms is None:
        return ""
    try:
        at = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return ""
    return f"{at:%Y-%m-%dT%H:%M:%SZ}" if time_ms > 0 else ""


def _head(status: dict[str, Any], now_ms: int) -> list[str]:
    rows = [("pipeline", status["name"]), ("state", _state(status))]
    supervisor, processes = status["supervisor"], _processes(status)
    if processes:
        rows.append(("processes", processes))
    if supervisor and supervisor["restarts"]:
        last = iso(supervisor["last_failed_ms"])
        rows.append(
            ("restarts", f"{supervisor['restarts']}" + (f", the last at {last}" if last else ""))
        )
    if supervisor and supervisor["last_cause"]:
        rows.append(("last failure", supervisor["last_cause"]))
    if status["committed_epoch"] is not None or status["planned_epoch"] is not None:
        rows += [
            ("epoch", _epoch(status, now_ms)),
            ("watermark", iso(status["watermark_ms"]) or _NO_WATERMARK),
            ("lag", _lag(status["lag"])),
            ("rate", _rate(status["rate"])),
            *([("shards", shards)] if (shards := _shards(status["shards"])) else []),
            *(
                row
                for name in ("correct", "recoverable", "fresh")
                for row in _verdict(name, status)
            ),
            ("restorable", _ranges(status["restorable"]) or "no epoch"),
            *(
                (each["subject"], each["message"] + _MARKS[each["verdict"]])
                for each in (status["restore"] or {"budgets": []})["budgets"]
            ),
        ]
    rows.append(("checkpoint", status["checkpoint"]))
    return [line for name, text in rows for line in _wrapped(name, text)]


def _verdict(name: str, status: dict[str, Any]) -> list[tuple[str, str]]:
    """The state and why; unless all is well, below it the command to copy."""
    verdict = status[name]
    found = [(name, f"{verdict['state']}: {verdict['reason']}")]
    return found if verdict["state"] == "ok" else [*found, (_COMMAND, verdict["next"])]


def _wrapped(name: str, text: str) -> list[str]:
    """A name and what is to be said of it; one long word, as a path, and a command stay whole."""
    if " " not in text or name == _COMMAND:
        return [f"{name:<{_INDENT}}{text}"]
    return wrap(
        f"{name:<{_INDENT}}{text}", WIDTH, subsequent_indent=" " * _INDENT,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _state(status: dict[str, Any]) -> str:
    state, supervisor = status["state"], status["supervisor"]
    if state == "never started":
        return "never started; catchwater pipeline run FILE starts it"
    since_ms = supervisor["since_ms"] if supervisor and state != "elsewhere" else None
    if state == "idle":
        since_ms = status["last_finished_ms"]
    words = {
        "waiting": "waits to start again",
        "killed": "was killed, having run",
        "ended": "has ended",
        "elsewhere": f"{status['elsewhere']} runs it, or was lost",
        "unknown": "not known: the checkpoint's store does not answer",
    }
    since = iso(since_ms)
    return words.get(state, str(state)) + (f" since {since}" if since else "")


def _processes(status: dict[str, Any]) -> str:
    supervisor = status["supervisor"]
    if supervisor and status["state"] in ("running", "idle", "waiting"):
        names = {"supervisor": "pid", "driver": "driver", "spare": "spare"}
        return ", ".join(
            f"{name} {supervisor[key]}" for name, key in names.items() if supervisor[key]
        )
    return str(status["process"] or "")


def _epoch(status: dict[str, Any], now_ms: int) -> str:
    parts, finished_ms = [], status["last_finished_ms"]
    if status["committed_epoch"] is not None:
        ago = "" if finished_ms is None else f", {_span((now_ms - finished_ms) / 1000)} ago"
        parts.append(
            f"{status['committed_epoch']} was done at {iso(finished_ms) or 'some time'}{ago}"
        )
    if status["planned_epoch"] is not None:
        how = "is under way" if status["process"] is not None else "was begun and runs again"
        parts.append(f"{status['planned_epoch']} {how}")
    return "; ".join(parts)


def _lag(lag: dict[str, Any]) -> str:
    if lag["unknown"]:
        return f"unknown: {lag['unknown']}"
    seconds = lag["seconds"]
    return f"{spaced(lag['records'])} records" + ("" if seconds is None else f", {_span(seconds)}")


def _shards(shards: list[dict[str, Any]]) -> str:
    """Where they are, and what it cost to bring them there; nothing where one machine has all."""
    hosts = Counter(each["host"] for each in shards)
    read_bytes, moves = (sum(each[name] for each in shards) for name in ("read_bytes", "moves"))
    if len(hosts) < 2 and not moves:
        return ""
    epochs = sum(each["epochs"] for each in shards)
    current = 100 * (1 - sum(each["stale"] for each in shards) / max(1, epochs))
    where = ", ".join(f"{count} at {host or 'unknown'}" for host, count in sorted(hosts.items()))
    each = read_bytes / max(1, max(each["epochs"] for each in shards))
    return (
        f"{where}; {moves} moves in {epochs} shard epochs, {current:.1f} % found their state; "
        f"{spaced(round(each))} B an epoch were read of the others"
    )


def _rate(rate: dict[str, Any]) -> str:
    if rate["over_s"] is None:
        return "not known before two epochs"
    return (
        f"{_count(rate['in_per_s'])} records/s in, {_count(rate['out_per_s'])}/s out "
        f"(over {_span(rate['over_s'])})"
    )


def _catching_up(status: dict[str, Any]) -> list[str]:
    """A restore that is under way: all of it, then its parts."""
    restore = status["catching_up"]
    if restore is None:
        return []
    left = "" if restore["eta_s"] is None else f", {_span(restore['eta_s'])} left"
    input_ = f"{restore['percent']:.0f} % of the input"
    after = f"{input_}, {_span(restore['since_s'])} after the start{left}"
    rows = [
        [each["name"], f"{each['percent']:.0f} %", each["done"], each["of"],
         "" if each["bytes_per_s"] is None else f"{each['bytes_per_s'] / 1e6:.1f}",
         "" if each["eta_s"] is None else _span(each["eta_s"])]
        for each in (*restore["shards"], *restore["partitions"])
    ]  # fmt: skip
    columns = ["shard or partition", "done", "read", "of", "MB/s", "left"]
    return [*_wrapped("catching up", f"{restore['phase']}: {after}"), *_table(columns, rows)]


def _functions(status: dict[str, Any]) -> list[str]:
    rows = [
        [f["function"], f["events"], f["outputs"], f["late"], f["duplicates"], f["poisoned"],
         f["keys"], _size(f["state_bytes"]), f["operator_p99_ms"]]
        for f in status["functions"] if status["recent_epochs"]
    ]  # fmt: skip
    columns = ["function", "events", "outputs", "late", "dupl", "poison", "keys", "state", "p99 ms"]
    return _table(columns, rows)


def _sinks(status: dict[str, Any]) -> list[str]:
    rows = [
        [s["sink"], s["epoch"], s["records"], s["commit_ms"], s["target"],
         " ".join(f"{p}:{at}" for p, at in s["offsets"].items())]
        for s in status["sinks"]
    ]  # fmt: skip
    return _table(["sink", "epoch", "records", "commit ms", "target", "next offsets"], rows)


def _epochs(status: dict[str, Any]) -> list[str]:
    rows = [
        [e["epoch"], e["events"], e["outputs"], e["source_ms"], e["operator_ms"], e["sinks_ms"],
         e["commit_ms"], e["total_ms"], iso(e["finished_ms"])[11:]]
        for e in status["recent_epochs"]
    ]  # fmt: skip
    parts = ["source", "function", "sinks", "commit", "total ms"]
    return _table(["epoch", "events", "outputs", *parts, "finished"], rows)


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Within 80 columns; numbers stand right, the last column is cut where it must be."""
    if not rows:
        return []
    cells = [list(columns), *([_cell(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    right = [any(isinstance(row[at], int | float) for row in rows) for at in range(len(columns))]
    lines = []
    for line in cells:
        padded = (
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(line, widths, right, strict=True)
        )
        text = "  ".join(padded).rstrip()
        lines.append(text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…")
    return lines


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, int | float):
        return _count(value)
    text = str(value)
    return text if len(text) <= _NAME else f"{text[: _NAME - 1]}…"


def _count(number: float) -> str:
    """At most seven characters."""
    if abs(number) < 10 and number != int(number):
        return f"{number:.1f}"
    for unit, size in (("G", 10**9), ("M", 10**6)):
        if abs(number) >= size:
            return f"{number / size:.1f} {unit}"
    return spaced(round(number))


def _size(size_bytes: float) -> str:
    unit = 0
    while size_bytes >= 1024 and unit < len(_UNITS) - 1:
        size_bytes, unit = size_bytes / 1024, unit + 1
    return f"{size_bytes:.1f} {_UNITS[unit]}" if unit else f"{size_bytes} B"


def _span(seconds: float) -> str:
    """How long something took or lasts, in two units at most."""
    if seconds < 60:
        return f"{max(0.0, seconds):.1f} s"
    minutes, left = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {left} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def _ranges(epochs: Sequence[int]) -> str:
    """The epochs, those that follow each other as 3-7."""
    found: list[list[int]] = []
    for epoch in epochs:
        if found and epoch == found[-1][-1] + 1:
            found[-1][1:] = [epoch]
        else:
            found.append([epoch])
    return ", ".join("-".join(map(str, each)) for each in found)
