"""A sink from its configuration: the one place that knows all kinds.

Opening creates what is missing in the target (a topic, a table) and claims it; it refuses a target
that cannot take the outputs. What a kind needs is imported only when it is opened.
"""

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from catchwater.config import CatchwaterError
from catchwater.sinks.base import Seen, Sink
from catchwater.sinks.config import SinkConfig, without_secrets
from catchwater.sinks.guarantee import guarantee
from catchwater.sinks.staged import Archive, StagedFile
from catchwater.sinks.surroundings import Surroundings, staged_folder

if TYPE_CHECKING:
    from catchwater.sinks.http.endpoint import Endpoint
    from catchwater.sinks.relational.database import Database
    from catchwater.sinks.relational.tables import Target, Writer


class PackageMissing(CatchwaterError):
    """A sink needs a package that is not installed."""

    exit_code = 2


def open_sink(config: SinkConfig, around: Surroundings) -> Sink:
    """Open one sink. Raises `ConfigError`, and what the kind's target can raise."""
    guarantee(config, output_id=around.output_id)
    stager = StagedFile(around.objects, staged_folder(config.name))
    truth = Archive(stager, keep_ms=config.keep_ms)
    with _packages_named(config):
        return _OPENERS[config.kind](config, around, truth)


def check_sink(config: SinkConfig, around: Surroundings) -> None:
    """Refuse what no target could mend: a delivery, a URL, a name, a field without a column.

    Opens nothing. Raises as `open_sink`, as far as that can be told beforehand.
    """
    guarantee(config, output_id=around.output_id)
    with _packages_named(config):
        for module in _MODULES[config.kind]:
            importlib.import_module(f"catchwater.sinks.{module}")
        _CHECKS.get(config.kind, _check_nothing)(config, around)


def target_of(config: SinkConfig, folder: Path) -> str:
    """What a sink writes to, told apart from every other target; without what gives access to it.

    Two names of one server are two targets to it. Relative paths are meant from the folder.
    Asks nobody. Raises `ConfigError`, `PackageMissing`.
    """
    with _packages_named(config):
        return f"{config.kind} {_TARGETS[config.kind](config, Surroundings('', '', folder))}"


def look_at(config: SinkConfig, around: Surroundings) -> Seen:
    """What the target of a sink is like now; asked once, without patience, and not changed.

    Raises what a target that is away raises, and `TargetTaken`.
    """
    look = _LOOKS[config.kind]
    with _packages_named(config):
        return look(config, around)


def alter_target(config: SinkConfig, around: Surroundings) -> None:
    """Add to a table the columns that it lacks. Raises `TargetDiffers` if that is not enough."""
    with _packages_named(config):
        database, target = _target_table(config, around)
        with closing(database):
            target.alter()


@contextmanager
def _packages_named(config: SinkConfig) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise PackageMissing(
            f"The sink {config.name!r} of kind {config.kind} needs the package {error.name}, "
            "which is not installed.",
            hint=f"pip install 'catchwater[{config.kind}]'",
        ) from error


def preload(kinds: Iterable[str]) -> None:
    """Import what sinks of these kinds need, for one who has the time before they are opened.

    A package that is missing is named by `open_sink`.
    """
    for kind in kinds:
        for module in _MODULES[kind]:
            with suppress(ModuleNotFoundError):
                importlib.import_module(f"catchwater.sinks.{module}")


def _open_log(config: SinkConfig, around: Surroundings, truth: Archive) -> Sink:
    from catchwater.sinks.log.sink import open_log

    return open_log(config, around, truth)


def _open_table(config: SinkConfig, around: Surroundings, truth: Archive) -> Sink:
    from catchwater.sinks.relational.columns import codec_of
    from catchwater.sinks.relational.sink import TableSink

    database, writer = _table_of(config, around)
    return TableSink(database, writer, codec_of(around.output_type), config, truth, around.clock)


def _table_of(config: SinkConfig, around: Surroundings) -> "tuple[Database, Writer]":
    """The database, not connected yet, and who writes to which of its tables."""
    from catchwater.sinks.relational.tables import Writer

    database: Database
    if config.kind == "postgres":
        from catchwater.sinks.relational.postgres import PostgresDatabase

        database = PostgresDatabase(config.options["url"])
    else:
        from catchwater.sinks.relational.sqlite import SqliteDatabase

        database = SqliteDatabase(around.folder / config.options["path"])
    writer = Writer(
        pipeline=around.pipeline,
        sink=config.name,
        generation=around.generation,
        table=config.options["table"],
        output_id=around.output_id if config.options["mode"] == "upsert" else (),
    )
    return database, writer


def _target_table(config: SinkConfig, around: Surroundings) -> "tuple[Database, Target]":
    """The database, not connected yet, and the sink's table in it."""
    from catchwater.sinks.relational.columns import codec_of
    from catchwater.sinks.relational.tables import Target

    database, writer = _table_of(config, around)
    return database, Target(database, writer, codec_of(around.output_type).columns)


def _check_table(config: SinkConfig, around: Surroundings) -> None:
    _target_table(config, around)


def _look_at_table(config: SinkConfig, around: Surroundings) -> Seen:
    database, target = _target_table(config, around)
    with closing(database):
        return target.look()


def _table_place(config: SinkConfig, around: Surroundings) -> str:
    database, writer = _table_of(config, around)
    return f"{database.name} {writer.table}"


def _open_http(config: SinkConfig, around: Surroundings, truth: Archive) -> Sink:
    from catchwater.sinks.http.sink import HttpSink, names_of

    endpoint = _endpoint_of(config, around)
    names = names_of(config.options["url"], around.output_id)
    return HttpSink(
        endpoint,
        names,
        config,
        truth,
        pipeline=around.pipeline,
        generation=around.generation,
        clock=around.clock,
    )


def _endpoint_of(config: SinkConfig, around: Surroundings) -> "Endpoint":
    """The endpoint, not connected yet."""
    from catchwater.sinks.http.endpoint import Endpoint

    return Endpoint(
        config.options["url"],
        concurrency=config.number("concurrency"),
        timeout_ms=config.milliseconds("timeout"),
        retry_ms=config.milliseconds("retry"),
        authorization=config.options["authorization"],
        clock=around.clock,
    )


def _check_http(config: SinkConfig, around: Surroundings) -> None:
    from catchwater.sinks.http.sink import names_of

    _endpoint_of(config, around).close()
    names_of(config.options["url"], around.output_id)


def _open_kafka(config: SinkConfig, around: Surroundings, truth: Archive) -> Sink:
    from catchwater.sinks.kafka.sink import open_kafka

    return open_kafka(config, around, truth)


def _look_at_kafka(config: SinkConfig, around: Surroundings) -> Seen:
    from catchwater.sinks.kafka.sink import look_at_kafka

    return look_at_kafka(config, around)


def _kafka_place(config: SinkConfig, around: Surroundings) -> str:
    """Of a section that names no brokers they are the source's, whatever they are called."""
    brokers = config.options.get("kafka.bootstrap.servers", "")
    named = ",".join(sorted(each.strip() for each in brokers.split(",")))
    return f"{config.options['topic']} at {named}" if named else config.options["topic"]


def _look_at_log(config: SinkConfig, around: Surroundings) -> Seen:
    from catchwater.sinks.log.sink import look_at_log

    return look_at_log(config, around)


def _check_columns(config: SinkConfig, around: Surroundings) -> None:
    from catchwater.sinks.lake.columns import Columns

    Columns(around.output_type)


def _check_nothing(config: SinkConfig, around: Surroundings) -> None:
    """All that can be told of it stands in `sinks.config`."""


def _open_parquet(config: SinkConfig, around: Surroundings, truth: Archive) -> Sink:
    from catchwater.sinks.lake.parquet import open_parquet

    return open_parquet(config, around, truth)


def _open_iceberg(config: SinkConfig, around: Surroundings, truth: Archive) -> Sink:
    from catchwater.sinks.lake.iceberg import open_iceberg

    return open_iceberg(config, around, truth)


def _look_at_parquet(config: SinkConfig, around: Surroundings) -> Seen:
    from catchwater.sinks.lake.parquet import look_at_parquet

    return look_at_parquet(config, around)


def _look_at_iceberg(config: SinkConfig, around: Surroundings) -> Seen:
    from catchwater.sinks.lake.iceberg import look_at_iceberg

    return look_at_iceberg(config, around)


def _look_at_endpoint(config: SinkConfig, around: Surroundings) -> Seen:
    """Whether the server answers; what is there has no marks."""
    with closing(_endpoint_of(config, around)) as endpoint:
        endpoint.reach()
    return Seen()


def _url_place(config: SinkConfig, around: Surroundings) -> str:
    """Without what may be secret in it; a path as that of a file."""
    url = config.options["url"]
    if config.kind == "parquet" and "://" not in url:
        return (around.folder / url).resolve().as_uri()
    return without_secrets(url)


def _iceberg_place(config: SinkConfig, around: Surroundings) -> str:
    """Its catalog's address and the table's name, or those of the warehouse that the catalog is."""
    options, warehouse = config.options, config.options["warehouse"]
    if warehouse and "://" not in warehouse:
        warehouse = (around.folder / warehouse).resolve().as_uri()
    told = [options.get(f"catalog.{key}", "") for key in ("type", "name", "uri", "warehouse")]
    told += [v for k, v in sorted(options.items()) if k in _ICEBERG_PLACES]
    return " ".join(filter(None, [*map(without_secrets, [*told, warehouse]), options["table"]]))


_ICEBERG_PLACES = (
    "catalog.prefix", "catalog.glue.id", "catalog.glue.region", "catalog.dynamodb.region",
    "catalog.dynamodb.table-name",
)  # fmt: skip
"""What else says which catalog it is; all other properties may be secrets."""

_OPENERS: Mapping[str, Callable[[SinkConfig, Surroundings, Archive], Sink]] = {
    "log": _open_log,
    "postgres": _open_table,
    "sqlite": _open_table,
    "http": _open_http,
    "kafka": _open_kafka,
    "parquet": _open_parquet,
    "iceberg": _open_iceberg,
}

_CHECKS: Mapping[str, Callable[[SinkConfig, Surroundings], None]] = {
    "postgres": _check_table,
    "sqlite": _check_table,
    "http": _check_http,
    "parquet": _check_columns,
    "iceberg": _check_columns,
}

_TARGETS: Mapping[str, Callable[[SinkConfig, Surroundings], str]] = {
    "log": lambda config, _: config.options["topic"],
    "kafka": _kafka_place,
    "postgres": _table_place,
    "sqlite": _table_place,
    "parquet": _url_place,
    "iceberg": _iceberg_place,
    "http": _url_place,
}

_LOOKS: Mapping[str, Callable[[SinkConfig, Surroundings], Seen]] = {
    "log": _look_at_log,
    "kafka": _look_at_kafka,
    "postgres": _look_at_table,
    "sqlite": _look_at_table,
    "parquet": _look_at_parquet,
    "iceberg": _look_at_iceberg,
    "http": _look_at_endpoint,
}

_MODULES: Mapping[str, Sequence[str]] = {
    "log": ["log.sink"],
    "postgres": ["relational.sink", "relational.postgres"],
    "sqlite": ["relational.sink", "relational.sqlite"],
    "http": ["http.sink"],
    "kafka": ["kafka.sink"],
    "parquet": ["lake.parquet"],
    "iceberg": ["lake.iceberg"],
}
"""What opening a sink imports."""
