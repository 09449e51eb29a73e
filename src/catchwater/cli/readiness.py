"""`catchwater readiness report|gate`: is it ready for production, by evidence alone?

Everything is asked when the command runs: of the pipelines' files and checkpoints, of the log, of
the sinks, and of the results that drills have left. What does not answer is unknown, never good.
"""

import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from catchwater.cli.console import (
    FAILS,
    WARNS,
    AsJson,
    look_here,
    noun,
    print_json,
    print_rows,
    talk,
)
from catchwater.config import CatchwaterError

if TYPE_CHECKING:
    from catchwater.drill.readiness import (
        CheckAnswer,
        PipelineEvidence,
        PlatformEvidence,
        Report,
    )
    from catchwater.pipeline.opened import OpenPipeline
    from catchwater.recovery.contract import Contract
    from catchwater.recovery.intact import Look
    from catchwater.wire.client import Client

app = noun()

T = TypeVar("T")

ASK_S = 10.0
_SAMPLE_BYTES = 1 << 20
"""Of each partition's end, to see whether a key lies in two."""
_DOMAINS = {
    "object": "the object store",
    "postgres": "the catalog's PostgreSQL, with its replicas",
}

Files = Annotated[
    list[Path],
    typer.Argument(metavar="FILE…", show_default=False, help="The pipelines' TOML files."),
]
Drills = Annotated[
    Path,
    typer.Option("--drills", metavar="DIR", help="The results that `catchwater drill` has kept."),
]


@app.callback()
def readiness() -> None:
    """Say whether pipelines and their log are ready for production, by evidence."""


@app.command("report")
def report_(
    files: Files,
    drills: Drills = Path("drills"),
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE.html", help="Where the page is written.")
    ] = Path("readiness.html"),
    as_json: AsJson = False,
) -> None:
    """Write the report as one HTML page, or print it as JSON."""
    report = _report(files, drills)
    if as_json:
        print_json(report)
        return
    from catchwater.drill.page import page

    out.write_text(page(report), encoding="utf-8")
    _print(report)
    talk(f"{report.overall}: {out}")


@app.command()
def gate(files: Files, drills: Drills = Path("drills"), as_json: AsJson = False) -> None:
    """Let a release pass or stop it: exit 0 (pass), 3 (partial) or 4 (a blocker).

    A blocker in compatibility or rollback stops; so does every other.
    """
    report = _report(files, drills)
    if as_json:
        print_json({"overall": report.overall, "cards": report.cards, "lines": report.lines})
    else:
        _print(report)
    raise typer.Exit({"pass": 0, "partial": WARNS, "blocker": FAILS}[report.overall])


def _print(report: "Report") -> None:
    print_rows(
        ["mark", "of", "because"],
        [(card.mark, card.of, "; ".join(card.because)) for card in report.cards],
        as_json=False,
    )


def _report(files: Iterable[Path], drills: Path) -> "Report":
    return report_on([asked_of(file) for file in files], drills)


def report_on(
    asked: "Iterable[tuple[PipelineEvidence, PlatformEvidence]]", drills: Path
) -> "Report":
    """By what pipelines and their logs have said, and by the results of drills."""
    from catchwater.clock import SYSTEM
    from catchwater.drill.readiness import DrillEvidence, Evidence, report_of
    from catchwater.drill.result import load_results

    results, damaged = load_results(drills)
    pipelines, platforms = [], {}
    for pipeline, platform in asked:
        pipelines.append(pipeline)
        platforms[platform.name] = platform
    evidence = Evidence(
        asked_ms=SYSTEM.now_ms(),
        pipelines=pipelines,
        platforms=list(platforms.values()),
        drills=[DrillEvidence(str(path.absolute()), each) for path, each in results.items()],
        unreadable={str(path): why for path, why in damaged.items()},
    )
    return report_of(evidence)


def asked_of(file: Path) -> "tuple[PipelineEvidence, PlatformEvidence]":
    """What one pipeline's file, its checkpoint, its log and its sinks say."""
    from catchwater.drill.readiness import PipelineEvidence, Restored
    from catchwater.pipeline.opened import OpenPipeline
    from catchwater.recovery.estimate import load_samples

    config, found = look_here(file)
    pipeline = OpenPipeline(config, timeout_s=ASK_S)
    contract = found.contract
    name = config.name or (contract.pipeline if contract else config.functions[0])
    topics = pipeline.options.topics
    pins = _tried(lambda: pipeline.control.pins() if pipeline.control else [])
    checks = _tried(lambda: _checks(file, pipeline, contract)) if contract else None
    restore = contract.restore if contract else None
    samples = load_samples(config.checkpoint)
    evidence = PipelineEvidence(
        name=name,
        file=str(file),
        owner=config.owner,
        runbook=config.runbook,
        restorable=len(found.whole),
        broken=found.problems,
        savepoints=_tried(lambda: len(pipeline.shelf().names())),
        contract=_contract_file(found),
        max_restore_s=_budget_s(config.max_restore_ms, contract),
        restore_s=restore.high_s if restore else None,
        missing_per_s=restore.missing_per_s if restore else 0.0,
        needed_ms=contract.retention.ms if contract else None,
        retention_ms=_tried(lambda: retention_of(pipeline, topics)),
        checks=checks,
        pinned=bool(contract and contract.retention.pin and pins),
        wrong_pins=[] if pins is None else wrong_pins(contract, pins),
        bounded="maxOffsetsPerTrigger" in config.source,
        wrong_rows=_tried(lambda: _wrong_rows(file)),
        split_keys=_tried(lambda: _split_keys(pipeline, topics)),
        free_share=_free_share([config.checkpoint, config.local or config.folder]),
        metrics=config.metrics is not None,
        restores=[Restored(each.whole_s, each.estimated_s, name) for each in samples],
    )
    return evidence, _platform(pipeline)


def _tried(ask: Callable[[], T]) -> T | None:
    """What cannot be asked is unknown."""
    try:
        return ask()
    except CatchwaterError as error:
        _say_once(f"not known: {error}")
        return None


@cache
def _say_once(message: str) -> None:
    """Of a broker that is away every question says the same."""
    talk(message)


def _budget_s(declared_ms: int | None, contract: "Contract | None") -> float | None:
    if declared_ms is not None:
        return declared_ms / 1000
    return contract.max_restore_s if contract else None


def _contract_file(found: "Look") -> str | None:
    if found.contract is None:
        return None
    path = found.folder / "catchwater" / "contracts" / f"{found.contract.epoch}.json"
    return str(path.absolute())


def _checks(file: Path, pipeline: "OpenPipeline", contract: "Contract") -> "list[CheckAnswer]":
    from catchwater.cli import sink
    from catchwater.drill.readiness import CheckAnswer
    from catchwater.recovery.contract import check

    topics = sorted({position.topic for position in contract.inputs})
    state = pipeline.log_state(topics, sink.last_epochs(file))
    return [
        CheckAnswer(each.verdict, each.subject, each.message) for each in check(contract, state)
    ]


def wrong_pins(contract: "Contract | None", pins: list[dict[str, Any]]) -> list[str]:
    """Why the newest checkpoint's pin does not hold what that needs; a Kafka without has none."""
    if contract is None or not contract.retention.pin:
        return []
    pin = next((each for each in pins if each["id"] == contract.retention.pin), None)
    if pin is None:
        return [f"there is no pin {contract.retention.pin}"]
    held = {(each["topic"], each["partition"]): each["offset"] for each in pin["positions"]}
    wrong = []
    for position in contract.inputs:
        at = held.get((position.topic, position.partition))
        where = f"{position.topic}-{position.partition}"
        if at is None:
            wrong.append(f"{contract.retention.pin} does not hold {where}")
        elif at > position.offset:
            wrong.append(f"{contract.retention.pin} holds {where} from {at}, not {position.offset}")
    return wrong


def _wrong_rows(file: Path) -> dict[str, int]:
    from catchwater.cli.sink import verified

    return {
        name: len(report.findings) + len(report.gone) for name, report in verified(file).items()
    }


def _client(pipeline: "OpenPipeline") -> "Client":
    from catchwater.wire.client import Client

    options = pipeline.options
    return Client(options.bootstrap, timeout_s=ASK_S, security=options.security)


def retention_of(pipeline: "OpenPipeline", topics: Iterable[str]) -> dict[str, int]:
    """Topic → how old its records become, ms; -1: for ever."""
    from catchwater.recovery.contract import kept_ms

    with closing(_client(pipeline)) as client:
        configs = client.topic_configs(list(topics))
    return {topic: kept_ms(each) for topic, each in configs.items()}


def _split_keys(pipeline: "OpenPipeline", topics: Iterable[str]) -> dict[str, str]:
    """Topic → a key that the ends of two of its partitions have."""
    found = {}
    with closing(_client(pipeline)) as client:
        for topic in topics:
            seen: dict[bytes, int] = {}
            for partition in client.metadata([topic]).partitions(topic):
                for key in _some_keys(client, topic, partition):
                    if seen.setdefault(key, partition) != partition:
                        found[topic] = key.decode(errors="replace")
    return found


def _some_keys(client: "Client", topic: str, partition: int) -> set[bytes]:
    from catchwater.wire.arrow import decode, place
    from catchwater.wire.client import EARLIEST

    key = (topic, partition)
    first = client.list_offsets({key: EARLIEST})[key]
    fetched = client.fetch({key: first}, max_bytes=_SAMPLE_BYTES, max_wait_ms=100)[key]
    batches = place(fetched.records, partial_tail=True)
    keys: set[bytes] = set()
    for table in decode(fetched.records, batches, first=first, columns=["key"]):
        keys |= {each for each in table.column("key").to_pylist() if each is not None}
    return keys


def _free_share(folders: Iterable[Path]) -> dict[str, float]:
    shares = {}
    for folder in folders:
        there = next((path for path in [folder, *folder.absolute().parents] if path.exists()), None)
        if there is not None:
            usage = shutil.disk_usage(there)
            shares[str(folder)] = usage.free / usage.total
    return shares


def _platform(pipeline: "OpenPipeline") -> "PlatformEvidence":
    from catchwater.drill.readiness import PlatformEvidence

    bootstrap = pipeline.options.bootstrap
    name, secured = str(bootstrap), pipeline.config.source.get("kafka.security.protocol")

    def ask() -> PlatformEvidence:
        with closing(_client(pipeline)) as client:
            cluster, settings = client.metadata([]), client.broker_config()
        ours = pipeline.control is not None
        kind, domain = _wal(settings, ours=ours)
        hosts = {host for host, _ in cluster.brokers.values()}
        return PlatformEvidence(
            name=name, ours=ours, brokers=len(cluster.brokers), wal=kind, failure_domain=domain,
            access=_access(secured, hosts),
        )  # fmt: skip

    return _tried(ask) or PlatformEvidence(name=name, ours=False)


def _wal(settings: Mapping[str, str], *, ours: bool) -> tuple[str, str | None]:
    """The kind of write-ahead log, and what must fail together for acknowledged records to go."""
    if ours:
        kind = settings.get("catchwater.wal") or "file"
        return kind, _DOMAINS.get(kind, f"the file system of {settings.get('log.dirs')}")
    replicas = settings.get("default.replication.factor", "1")
    least = settings.get("min.insync.replicas", "1")
    return f"{replicas} replicas", f"{least} brokers that are in sync, or their page caches"


def _access(secured: str | None, hosts: set[str]) -> Literal["secured", "loopback", "open"]:
    if secured and secured.upper() not in ("PLAINTEXT", "SSL"):
        return "secured"
    is_local = all(host.startswith("127.") or host in ("localhost", "::1") for host in hosts)
    return "loopback" if is_local else "open"
