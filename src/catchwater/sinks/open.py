"""A sink from its configuration: the one place that knows all kinds.

Opening creates what is missing in the target (a topic, a table) and claims it; it refuses a target
that cannot take the outputs. What a kind needs is imported only when it is opened.
"""

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from catchwater.config import CatchwaterError
from catchwater.sinks.base import Sink
from catchwater.sinks.config import SinkConfig
from catchwater.sinks.guarantee import guarantee
from catchwater.sinks.staged import Archive, StagedFile
from catchwater.sinks.surroundings import Surroundings, staged_folder

if TYPE_CHECKING:
    from catchwater.sinks.http.endpoint import Endpoint
    from catchwater.sinks.relational.database import Database
    from catchwater.sinks.relational.tables import Writer


class PackageMissing(CatchwaterError):
    """A sink needs a package that is not installed."""

    exit_code = 2


def open_sink(config: SinkConfig, around: Surroundings) -> Sink:
    """Open one sink. Raises `ConfigError`, and what the kind's target can raise."""
    guarantee(config, output_id=around.output_id)
    stager = StagedFile(around.objects, staged_folder(config.name))
    truth = Archive(stager, keep_ms=config.keep_ms)
    try:
        return _OPENERS[config.kind](config, around, truth)
    except ModuleNotFoundError as error:
        raise _missing(config, error) from error


def check_sink(config: SinkConfig, around: Surroundings) -> None:
    """Refuse what no target could mend: a delivery, a URL, a name, a field without a column.

    Opens nothing. Raises as `open_sink`, as far as that can be told beforehand.
    """
    guarantee(config, output_id=around.output_id)
    try:
        _CHECKS.get(config.kind, _check_nothing)(config, around)
    except ModuleNotFoundError as error:
        raise _missing(config, error) from error


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


def _missing(config: SinkConfig, error: ModuleNotFoundError) -> PackageMissing:
    return PackageMissing(
        f"The sink {config.name!r} of kind {config.kind} needs the package {error.name}, "
        "which is not installed.",
        hint=f"pip install 'catchwater[{config.kind}]'",
    )


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


def _check_table(config: SinkConfig, around: Surroundings) -> None:
    from catchwater.sinks.relational.columns import codec_of
    from catchwater.sinks.relational.tables import Target

    database, writer = _table_of(config, around)
    Target(database, writer, codec_of(around.output_type).columns)


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
