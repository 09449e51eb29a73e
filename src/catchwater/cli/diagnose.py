"""`catchwater diagnose`: what holds a pipeline back, with what was measured, and what helps."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from catchwater.cli.console import (
    WARNS,
    AsJson,
    answers,
    look_here,
    noun,
    print_finding,
    print_json,
    talk,
)
from catchwater.config import CatchwaterError

if TYPE_CHECKING:
    from catchwater.pipeline.diagnose import BrokerLoad, GroupLoad, Measured
    from catchwater.pipeline.opened import OpenPipeline
    from catchwater.recovery.contract import Contract
    from catchwater.recovery.intact import Look
    from catchwater.verdicts import PipelineStatus

app = noun(has_verbs=False)

T = TypeVar("T")

_ASK_S = 10.0
MAX_GROUPS = 100
"""How many groups are asked: each costs some requests."""


@app.command()
def diagnose(
    file: Annotated[
        Path, typer.Argument(metavar="[FILE]", help="The pipeline's TOML file, or SCRIPT.py:NAME.")
    ] = Path("pipeline.toml"),
    as_json: AsJson = False,
) -> None:
    """Name what holds a pipeline back: what was measured, why it matters, what helps.

    From the epochs that its checkpoint keeps, its recovery contract, and what the log answers now;
    nothing is changed. What could not be asked is said. Exit 0 (nothing found) or 3.
    """
    from catchwater.pipeline.diagnose import diagnose as find
    from catchwater.pipeline.diagnose import split_ms

    unknown: list[str] = []
    measured = _measured(file, unknown)
    found, parts = find(measured), split_ms(measured)
    if as_json:
        print_json({"findings": found, "epoch_ms": parts, "epochs": len(measured.entries),
                    "pressed": measured.pressed, "unknown": unknown})  # fmt: skip
        raise typer.Exit(WARNS if found else 0)
    for each in unknown:
        talk(f"not known: {each}")
    spent = ", ".join(f"{part} {ms:.0f}" for part, ms in parts.items()) or "not measured yet"
    typer.echo(f"the last {len(measured.entries)} epochs, ms each: {spent}")
    for finding in found:
        print_finding("warn", finding.cause, f"{finding.subject}: {finding.measured}.", width=20)
        typer.echo(f"    why   {finding.why}")
        typer.echo(f"    next  ({finding.change}) {finding.next}")
    if not measured.entries and not found:
        print_finding(
            "unknown", "not known", "whether anything will hold it back: nothing ran yet."
        )
    elif not found and unknown:
        print_finding("unknown", "nothing", "of what was measured holds it back; not all was.")
    elif not found:
        print_finding("ok", "nothing", "of what was measured holds it back.")
    raise typer.Exit(WARNS if found else 0)


def _measured(file: Path, unknown: list[str]) -> "Measured":
    """Everything that can be asked; why the rest cannot is added to `unknown`."""
    from catchwater.clock import SYSTEM
    from catchwater.pipeline.diagnose import Measured
    from catchwater.pipeline.opened import OpenPipeline
    from catchwater.pipeline.status import status_of
    from catchwater.recovery.checkpoint import commit_ms
    from catchwater.recovery.ledger import Ledger
    from catchwater.wire.connection import parse_bootstrap

    def tried(ask: Callable[[], T]) -> T | None:
        try:
            return ask()
        except CatchwaterError as error:
            if str(error) not in unknown:
                unknown.append(str(error))
            return None

    config, found = look_here(file)
    status = status_of(config, found, SYSTEM)
    pipeline = OpenPipeline(config, timeout_s=_ASK_S)
    contract, entries = found.contract, Ledger(found.folder).recent(found.entries)
    restore = contract.restore if contract else None
    commits = {
        each.epoch: commit_ms(found.folder, each.epoch, each.finished_ms) for each in entries
    }
    most = config.source.get("maxOffsetsPerTrigger", "")
    if status.lag.unknown is not None:
        unknown.append(status.lag.unknown)
    asked = any(map(answers, parse_bootstrap(pipeline.options.bootstrap)))
    control = tried(lambda: pipeline.control) if asked else None
    return Measured(
        file=str(file),
        entries=entries,
        functions=[each["function"] for each in status.functions],
        tasks=config.tasks,
        commit_ms={epoch: took for epoch, took in commits.items() if took is not None},
        trigger_s=status.freshness.trigger_s,
        most_records=int(most) if most.isdecimal() else None,
        stale=status.fresh.state in ("warn", "fail"),
        lag_s=status.lag.seconds,
        under_way_s=status.freshness.under_way_s if _works(status) else None,
        epoch_s=status.freshness.epoch_s,
        input_per_s=restore.input_per_s if restore else None,
        capacity_per_s=restore.capacity_per_s if restore else None,
        missing_per_s=restore.missing_per_s if restore else 0.0,
        ours=control is not None or not asked,
        broker=tried(lambda: _broker(control.metrics())) if control is not None else None,
        groups=(tried(lambda: _groups(pipeline)) or ()) if asked else (),
        short_topics=(tried(lambda: _short_topics(pipeline, found)) or ()) if asked else (),
        needed_s=_needed_s(contract),
    )


def _works(status: "PipelineStatus") -> bool:
    """Whether a process works on an epoch that it has planned itself: a restore finds one there."""
    return status.process is not None and status.catching_up is None


def _needed_s(contract: "Contract | None") -> float | None:
    if contract is None or contract.retention.ms < 0:
        return None
    return contract.retention.ms / 1000


def _short_topics(pipeline: "OpenPipeline", found: "Look") -> list[str]:
    """Inputs that retention deletes before a restore has read them, where no pin holds them."""
    from catchwater.cli.readiness import retention_of, wrong_pins
    from catchwater.recovery.contract import short_topics

    contract = found.contract
    if contract is None:
        return []
    pins = pipeline.control.pins() if pipeline.control else []
    if contract.retention.pin and not wrong_pins(contract, pins):
        return []
    return short_topics(retention_of(pipeline, pipeline.options.topics), contract.retention.ms)


def _groups(pipeline: "OpenPipeline") -> "list[GroupLoad]":
    """The groups of the log that have members and positions."""
    from catchwater.clock import SYSTEM
    from catchwater.pipeline.diagnose import GroupLoad
    from catchwater.recovery.group import NoPositions, judge, observe
    from catchwater.wire.client import Client

    options, found = pipeline.options, []
    with closing(Client(options.bootstrap, timeout_s=_ASK_S, security=options.security)) as client:
        names = [name for name, (state, _) in sorted(client.groups().items()) if state == "Stable"]
        for name in names[:MAX_GROUPS]:
            members = client.members(name)
            try:
                seen = judge(observe(client, name), SYSTEM.now_ms())
            except NoPositions:
                continue
            read = sum(len(each.partitions) for each in members)
            found.append(GroupLoad(name, len(members), read, seen.lag_records, seen.lag_s))
    return found


def _broker(page: str) -> "BrokerLoad":
    """What a broker's page for Prometheus says of the write-ahead log and the object store."""
    from prometheus_client.parser import text_string_to_metric_families

    from catchwater.pipeline.diagnose import BrokerLoad

    buckets: dict[float, float] = {}
    requests = failed = 0.0
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == "catchwater_wal_fsync_seconds_bucket":
                bound = float(sample.labels["le"])
                buckets[bound] = buckets.get(bound, 0.0) + sample.value
            elif sample.name == "catchwater_object_store_requests_total":
                requests += sample.value
                failed += sample.value if sample.labels["outcome"] in ("failed", "retried") else 0
    writes = max(buckets.values(), default=0.0)
    p99_s = next((b for b, n in sorted(buckets.items()) if writes and n >= 0.99 * writes), None)
    return BrokerLoad(int(writes), p99_s, int(requests), int(failed))
