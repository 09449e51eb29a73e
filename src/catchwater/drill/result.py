"""What a drill found, in one form for every platform, and the budget it is held against.

Pure but for the files. A *finding* is one thing that was measured, with its budget and a verdict. A
drill fails where one of its findings does; it is `unknown` where the fault did not happen, or its
outcome could not be seen: never green by default.
"""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from catchwater.config import CatchwaterError, duration_ms, nearest
from catchwater.recovery.ledger import write_whole

FORMAT = 1

Verdict = Literal["pass", "warn", "fail", "unknown"]
_WORST: tuple[Verdict, ...] = ("fail", "unknown", "warn")
"""The verdict of many is the first of these that one has."""


class BadBudget(CatchwaterError):
    """A budget's file that cannot be used."""

    exit_code = 2


class Budget(msgspec.Struct, frozen=True):
    """The most of each that is acceptable."""

    restore_s: float = 300.0
    """From the fault until the pipeline has caught up with its input, which goes on."""
    unavailable_s: float = 60.0
    """The longest time in which no record was acknowledged."""
    slower: float = 3.0
    """How many times its time before an acknowledgement may take, at the 99th percentile."""
    missing: int = 0
    duplicate: int = 0
    anomalies: int = 0
    manual_steps: int = 0


_DURATIONS = {"restore": "restore_s", "unavailable": "unavailable_s"}
_NUMBERS = ("slower", "missing", "duplicate", "anomalies", "manual_steps")


class Finding(msgspec.Struct, frozen=True):
    """One thing that was measured."""

    name: str
    verdict: Verdict
    measured: float | int | None
    budget: float | int | None
    unit: str
    why: str = ""


class Workload(msgspec.Struct, frozen=True):
    """What went on meanwhile."""

    records: int
    rate: float
    """Records a second, as asked."""
    state_bytes: int | None = None
    """What the function keeps, as asked; None: the drill has no function."""
    cards: int = 0
    skew: float = 0.0
    late: float = 0.0
    state_read_bytes: int | None = None
    """What a restore reads of the state in the end, ids against repeats among it."""


class Result(msgspec.Struct, frozen=True):
    """One run of one drill; times are milliseconds since 1970."""

    drill: str
    platform: str
    verdict: Verdict
    findings: list[Finding]
    hypothesis: str
    blast_radius: str
    manual_steps: list[str]
    faults: list[str]
    """What was done, in order."""
    workload: Workload | None
    started_ms: int
    seconds: float
    restore_s: float | None = None
    estimate_s: float | None = None
    """What the contract had foretold of it."""
    versions: dict[str, str] = {}
    run: str = ""
    job: Literal["catchwater", "spark"] | None = None
    """What ran on the log: a pipeline of ours, or a plain Spark job. None: neither."""
    format: int = FORMAT


def verdict_of(findings: Iterable[Finding]) -> Verdict:
    """The worst of them; of none it is `unknown`."""
    found = {finding.verdict for finding in findings}
    for each in _WORST:
        if each in found:
            return each
    return "pass" if found else "unknown"


def at_most(
    name: str, measured: float | int, budget: float | int, unit: str, why: str = ""
) -> Finding:
    """A finding that fails where more was measured than the budget has."""
    return Finding(name, "pass" if measured <= budget else "fail", measured, budget, unit, why)


def foretold(measured_s: float, low_s: float | None, high_s: float | None) -> Finding:
    """How well an estimate foretold a restore; a warning where it took longer than that says."""
    name, unit = "restore against its estimate", "s"
    if low_s is None:
        why = "it was foretold that it would never catch up, or nothing was foretold"
        return Finding(name, "warn", measured_s, None, unit, why)
    bar = f"{low_s:.1f} to {'never' if high_s is None else f'{high_s:.1f}'} s were estimated"
    if measured_s < low_s:
        bar += ", which was too cautious"
    late = high_s is not None and measured_s > high_s
    budget = None if high_s is None else round(high_s, 2)
    return Finding(name, "warn" if late else "pass", measured_s, budget, unit, bar)


def read_budgets(path: Path, drills: Iterable[str]) -> dict[str, Budget]:
    """Drill to its budget: `[budget]` is everybody's, `[budget.NAME]` one's. Raises `BadBudget`."""
    try:
        content = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise BadBudget(f"The budget's file {path} cannot be read: {problem}.") from problem
    budget, known = content.pop("budget", {}), list(drills)
    if content or not isinstance(budget, dict):
        raise BadBudget(f"{path}: all of it belongs into [budget] and [budget.NAME].")
    own = {name: keys for name, keys in budget.items() if isinstance(keys, dict)}
    for name in own:
        if name not in known:
            hint = f"The nearest is {nearest(name, known)}."
            raise BadBudget(f"{path}: there is no drill {name!r}.", hint=hint)
    common = {key: value for key, value in budget.items() if key not in own}
    return {name: _budget(path, common | own.get(name, {})) for name in known}


def _budget(path: Path, given: Mapping[str, Any]) -> Budget:
    amounts = {_field(path, key): _amount(path, key, value) for key, value in given.items()}
    return msgspec.convert(amounts, Budget)


def _field(path: Path, key: str) -> str:
    if key not in _DURATIONS and key not in _NUMBERS:
        hint = f"The nearest is {nearest(key, [*_DURATIONS, *_NUMBERS])}."
        raise BadBudget(f"{path}: there is no budget {key!r}.", hint=hint)
    return _DURATIONS.get(key, key)


def _amount(path: Path, key: str, value: Any) -> float | int:
    if key in _DURATIONS:
        try:
            return duration_ms(str(value)) / 1000
        except ValueError as problem:
            raise BadBudget(f"{path}: {key}: {problem}.") from None
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise BadBudget(f"{path}: {key} must be a number from 0 on, not {value!r}.")
    return value


def write_result(folder: Path, result: Result) -> Path:
    """Keep a result beside those before it, durably; the file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.started_ms}-{result.platform}-{result.drill}.json"
    write_whole(path, msgspec.json.format(msgspec.json.encode(result), indent=1))
    return path


def load_results(folder: Path) -> tuple[dict[Path, Result], Mapping[Path, str]]:
    """Every result of a folder, oldest first, and why others cannot be read."""
    results, damaged = {}, {}
    for path in sorted(folder.glob("*.json")):
        try:
            results[path] = msgspec.json.decode(path.read_bytes(), type=Result)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as problem:
            damaged[path] = str(problem)
    ordered = sorted(results.items(), key=lambda item: item[1].started_ms)
    return dict(ordered), damaged
