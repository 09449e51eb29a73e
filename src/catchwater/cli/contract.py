"""`catchwater contract …`: what a restore of a checkpoint needs, and whether it is there.

Of a pipeline by its contracts, of any other consumer by the positions of its group.
"""

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from catchwater.cli.console import (
    HERE,
    AsJson,
    Bootstrap,
    CommandConfig,
    DryRun,
    PipelineFile,
    Yes,
    agreed,
    client_of,
    leave,
    noun,
    print_json,
    print_table,
    spaced,
    talk,
)
from catchwater.config import duration_ms

if TYPE_CHECKING:
    from catchwater.recovery.contract import Contract, Finding
    from catchwater.recovery.estimate import Estimate
    from catchwater.recovery.group import GroupContract, Observed
    from catchwater.replay.control import Control
    from catchwater.wire.client import Client

app = noun()

Checkpoint = Annotated[
    int | None, typer.Option("--checkpoint", metavar="N", help="The epoch; otherwise the newest.")
]


Group = Annotated[
    str, typer.Option("--group", metavar="NAME", show_default=False, help="A consumer group.")
]
_ASK_S = 10.0
"""How long brokers are asked."""


@app.callback()
def contract() -> None:
    """See what a restore would need, and whether it would succeed."""


@app.command()
def show(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", show_default=False, help="The pipeline's TOML file."),
    ] = None,
    checkpoint: Checkpoint = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            metavar="NAME",
            help="Instead of a pipeline, any consumer group of any Kafka.",
        ),
    ] = None,
    max_restore: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="How long that group's job takes to come back."),
    ] = None,
    bootstrap: Bootstrap = HERE,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Show the contract of a checkpoint, as it was written, or that of any consumer group.

    Exit 0, 3 (a budget may be breached, or a restore never catches up; a group's input may be
    deleted before a restore ends, or a transaction on it hangs) or 4 (a budget is breached; a
    group's input is gone).
    """
    if (file is None) == (group is None):
        raise typer.BadParameter("Name a pipeline's FILE, or a consumer group with --group.")
    if group is not None:
        max_restore_s = None if max_restore is None else _duration_s(max_restore)
        _show_group(group, max_restore_s, bootstrap, command_config, as_json=as_json)
    elif file is not None:
        _show_checkpoint(file, checkpoint, as_json=as_json)


def _show_checkpoint(file: Path, checkpoint: int | None, *, as_json: bool) -> None:
    from catchwater.cli.console import load_here
    from catchwater.recovery.contract import budgets, load_contract

    chosen = load_contract(load_here(file).checkpoint, checkpoint)
    found = budgets(chosen)
    if as_json:
        print_json(chosen)
        leave(each.verdict for each in found)
    print_table(
        ["contract", f"{chosen.pipeline}, checkpoint {chosen.epoch}"],
        [
            *(("function", f"{each.name} v{each.version}") for each in chosen.functions),
            ("replay", f"{spaced(chosen.replay_records)} records, {_size(chosen.replay_bytes)}"),
            ("state", _size(chosen.state.bytes)),
            *((each.subject, each.message) for each in found),
            *_timelines(chosen.restore),
            ("retention needed", _hours(chosen.retention.ms)),
            ("pin", chosen.retention.pin),
            *((f"sink {name}", f"{spaced(sink.records)} records of this epoch in {sink.topic}")
              for name, sink in chosen.sinks.items()),
        ],
    )  # fmt: skip
    leave(each.verdict for each in found)


def _timelines(restore: "Estimate") -> list[tuple[str, str]]:
    """What the estimate is made of."""
    rows = [("measured restores", str(restore.samples))]
    before, after = restore.infrastructure, restore.application
    if before is None or after is None:  # written by an earlier version
        return rows
    replay = "never ends"
    if after.replay_s is not None and after.replay_records is not None:
        replay = f"{after.replay_s:.1f} s for {spaced(after.replay_records)} records"
    return [
        ("infrastructure", f"detection {before.detection_s:.1f} s, scheduling "
                           f"{before.scheduling_s:.1f} s, session {before.session_s:.1f} s"),
        ("application", f"state {after.state_s:.1f} s, replay {replay}"),
        ("input", f"{restore.input_per_s:.0f} records/s"),
        ("capacity", f"{restore.capacity_per_s:.0f} records/s ({_BASIS[restore.capacity]})"),
        *(
            [("with local state", f"{restore.with_local_s:.1f} s")]
            if after.state_s and restore.with_local_s is not None
            else []
        ),
        *([("assumed", f"{', '.join(restore.assumed)}: not measured yet")] if restore.assumed
          else []),
        *rows,
    ]  # fmt: skip


_BASIS = {
    "restores": "by measured restores",
    "epochs": "by the last epochs",
    "assumed": "assumed: nothing was measured yet",
}


def _hours(kept_ms: int) -> str:
    return "for ever" if kept_ms < 0 else f"{kept_ms / 3_600_000:.1f} h"


@app.command()
def check(file: PipelineFile, checkpoint: Checkpoint = None, as_json: AsJson = False) -> None:
    """Compare a contract with what log and sinks hold now.

    Exit 0, 3 (warns) or 4 (fails).
    """
    from catchwater.cli import sink
    from catchwater.cli.console import open_here
    from catchwater.recovery import contract as terms

    pipeline = open_here(file)
    chosen = terms.load_contract(pipeline.config.checkpoint, checkpoint)
    topics = sorted({position.topic for position in chosen.inputs})
    state = pipeline.log_state(topics, sink.last_epochs(file))
    findings = terms.check(chosen, state)
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        print_table(["verdict", "of", "why"], [(f.verdict, f.subject, f.message) for f in findings])
        for line in _next(findings, chosen, shlex.quote(str(file))):
            talk(line)
    leave(finding.verdict for finding in findings)


def _next(findings: "Sequence[Finding]", chosen: "Contract", file: str) -> list[str]:
    """What to do about those that do not hold."""
    subjects = [each.subject for each in findings if each.verdict != "pass"]
    inputs = {f"{each.topic}-{each.partition}" for each in chosen.inputs}
    lines = []
    if inputs & {*subjects}:
        lines += [
            f"which checkpoints the log still covers: catchwater recovery explain {file}",
            f"to begin anew, where none is: catchwater recovery reset {file} --to earliest",
        ]
    if "pin" in subjects:
        run = f"catchwater pipeline run {file}"
        lines.append(f"the next checkpoint makes a pin again; if it does not run: {run}")
    if {"restore", "recovery point"} & {*subjects}:
        lines.append(f"what holds it back: catchwater diagnose {file}")
    if {*chosen.sinks} & {*subjects}:
        lines.append(f"compare its rows: catchwater sink verify {file}")
    return [f"next: {line}" for line in lines]


def _size(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


# Groups.


def _show_group(
    group: str,
    max_restore_s: float | None,
    bootstrap: str,
    command_config: Path | None,
    *,
    as_json: bool,
) -> None:
    from catchwater.clock import SYSTEM
    from catchwater.recovery.group import judge

    seen, _ = _observed(group, bootstrap, command_config)
    contract = judge(seen, SYSTEM.now_ms(), max_restore_s)
    if as_json:
        print_json(contract)
    else:
        _print_group(contract)
    leave(contract.verdicts)


def _print_group(contract: "GroupContract") -> None:
    size = "unknown" if contract.replay_bytes is None else _size(contract.replay_bytes)
    age = "unknown" if contract.lag_s is None else f"{contract.lag_s:.1f} s"
    left = "for ever" if contract.retention_left_s is None else f"{contract.retention_left_s:.0f} s"
    rows = [
        ("state", f"{contract.state}, {contract.protocol_type or 'no protocol'}"),
        ("lag", f"{spaced(contract.lag_records)} records, the oldest {age} old"),
        ("replay", size),
        ("input is kept", left),
    ]
    for each in contract.changelogs:
        held = "unknown size" if each.bytes is None else _size(each.bytes)
        policy = f"{held}, cleanup.policy {each.cleanup_policy}"
        rows.append((f"changelog {each.topic}", f"{each.partitions} partitions, {policy}"))
    for open_ in contract.transactions:
        who = open_.transactional_id or f"producer {open_.producer_id}"
        where = f"{open_.topic}-{open_.partition}"
        rows.append((f"open on {where}", f"a transaction of {who}, {open_.verdict}: {open_.why}"))
    if unsettled := [f"{p.topic}-{p.partition}" for p in contract.positions if p.unsettled]:
        where = ", ".join(unsettled)
        rows.append(("its own transaction", f"is open, with newer positions in {where}"))
    print_table(["contract", f"group {contract.group}"], rows)
    typer.echo()
    columns = ["topic", "partition", "offset", "log_start", "log_end", "lag", "verdict", "why"]
    print_table(
        columns,
        [
            (
                p.topic,
                p.partition,
                p.offset,
                p.log_start,
                p.log_end,
                p.lag_records,
                p.verdict,
                p.why,
            )
            for p in contract.positions
        ],
    )


@app.command()
def pin(
    group: Group,
    lease: Annotated[
        str, typer.Option(metavar="DURATION", help="For so long, unless it is pinned again.")
    ] = "7d",
    bootstrap: Bootstrap = HERE,
    command_config: CommandConfig = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Have the log keep what a consumer group has not read yet.

    From where the group stands now; pinned again, it stands where the group does then. Exit 5 if
    some of it is gone already. Another Kafka has no pins.
    """
    from catchwater.recovery.group import NoPins, check_held, pin_of

    seen, control = _observed(group, bootstrap, command_config)
    if control is None:
        raise NoPins(
            f"The log at {bootstrap} is another Kafka: it has no pins.",
            hint="Lengthen retention.ms of the group's topics there.",
        )
    check_held(seen)
    where = f"{len(seen.committed)} partitions from where group {group} stands"
    if not agreed(f"pin {where}, for {lease}", dry_run=dry_run, yes=yes):
        return
    positions = [
        {"topic": topic, "partition": partition, "offset": offset}
        for (topic, partition), offset in sorted(seen.committed.items())
    ]
    lease_ms = round(1000 * _duration_s(lease))
    name = pin_of(group)
    control.set_pin(name, {"owner": name, "positions": positions, "lease_ms": lease_ms})
    talk(f"pinned {where}, for {lease}: {name}")


@app.command()
def unpin(
    group: Group,
    bootstrap: Bootstrap = HERE,
    command_config: CommandConfig = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Let the log delete again what `contract pin` has kept for a consumer group."""
    from catchwater.recovery.group import pin_of

    with _client(bootstrap, command_config) as client:
        control = _control(client)
    name = pin_of(group)
    if control is None or all(each["id"] != name for each in control.pins()):
        talk(f"nothing is pinned for group {group}")
    elif agreed(f"release the pin {name}", dry_run=dry_run, yes=yes):
        control.release_pin(name)
        talk(f"released {name}")


def _observed(
    group: str, bootstrap: str, command_config: Path | None
) -> "tuple[Observed, Control | None]":
    """What the brokers say of a group, and the log's control API where it is ours."""
    from catchwater.recovery.group import observe

    with _client(bootstrap, command_config) as client:
        control = _control(client)
        seen = observe(client, group, control.pins() if control else ())
    return seen, control


def _client(bootstrap: str, command_config: Path | None) -> "Client":
    return client_of(bootstrap, command_config, name="catchwater-contract", timeout_s=_ASK_S)


def _control(client: "Client") -> "Control | None":
    """The log's control API; None: it is another Kafka, or does not tell this client."""
    from catchwater.replay.control import CONTROL_URL, Control
    from catchwater.wire.client import RequestRefused
    from catchwater.wire.errors import ErrorCode

    try:
        url = client.broker_config().get(CONTROL_URL)
    except RequestRefused as refused:
        if refused.code is not ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise
        return None
    return Control(url, timeout_s=_ASK_S) if url else None


def _duration_s(text: str) -> float:
    try:
        return duration_ms(text) / 1000
    except ValueError as problem:
        raise typer.BadParameter(f"{problem}") from None
