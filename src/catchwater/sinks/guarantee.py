"""What a sink's configuration is worth, and why; what cannot be is refused.

Pure: asked when a pipeline's file is loaded, and printed by `catchwater pipeline plan`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from catchwater.config import ConfigError
from catchwater.sinks.config import SinkConfig

Level = Literal["exactly-once", "idempotent", "at-least-once"]


class ImpossibleDelivery(ConfigError):
    """The target cannot give what `delivery` asks for; the hint says what to choose instead."""


@dataclass(frozen=True, slots=True)
class Guarantee:
    """What readers of the target can rely on.

    `exactly-once`: an epoch is visible whole or not at all, once. `idempotent`: a repeated epoch
    changes nothing, but a reader may see a part of it before the rest. `at-least-once`: a repeated
    epoch is there twice; rows tell by their identity.
    """

    level: Level
    why: str


def guarantee(config: SinkConfig, *, output_id: tuple[str, ...] = ()) -> Guarantee:
    """What this sink gives, the function's outputs having this identity.

    Raises `ImpossibleDelivery` (exit 2).
    """
    return _RULES[config.kind](config, output_id)


def _log(config: SinkConfig, output_id: tuple[str, ...]) -> Guarantee:
    if config.exactly_once:
        return Guarantee(
            "exactly-once", "tasks stage chunks, one catalog commit makes them visible with a mark"
        )
    return Guarantee(
        "at-least-once", "the task appends its records; each carries a header catchwater-row"
    )


def _kafka(config: SinkConfig, output_id: tuple[str, ...]) -> Guarantee:
    if config.exactly_once:
        return Guarantee(
            "exactly-once", "one Kafka transaction per epoch with a record of it in a ledger topic"
        )
    return Guarantee(
        "at-least-once", "records are produced without a transaction, under a header catchwater-row"
    )


def _table(config: SinkConfig, output_id: tuple[str, ...]) -> Guarantee:
    if config.options["mode"] == "upsert":
        if not output_id:
            raise ImpossibleDelivery(
                f'The sink {config.name!r} has mode = "upsert", but the function declares no '
                "output_id: nothing says which row an output replaces.",
                hint='Declare output_id=("field", …) in @function, or choose mode = "append".',
            )
        if not config.exactly_once:
            return Guarantee("idempotent", f"rows are replaced by {', '.join(output_id)}")
    if config.exactly_once:
        return Guarantee("exactly-once", "rows and the epoch's mark in one transaction")
    return Guarantee(
        "at-least-once", "rows without a mark; catchwater_epoch, _shard and _row tell them"
    )


def _files(config: SinkConfig, output_id: tuple[str, ...]) -> Guarantee:
    if config.exactly_once:
        return Guarantee("exactly-once", _ONE_REQUEST[config.kind])
    raise ImpossibleDelivery(
        f"The sink {config.name!r} of kind {config.kind} writes epochs once at no further cost: "
        "there is no cheaper at-least-once.",
        hint='Leave delivery out, or set delivery = "exactly-once".',
    )


_ONE_REQUEST = {
    "parquet": "an epoch is one file, created at once under its own name, with its mark in it",
    "iceberg": "an epoch is one snapshot; its mark is a property changed in the same commit",
}


def _http(config: SinkConfig, output_id: tuple[str, ...]) -> Guarantee:
    named = any(part in config.options["url"] for part in ("{key}", "{id}", "{row}"))
    if "{id}" in config.options["url"] and not output_id:
        raise ImpossibleDelivery(
            f"The URL of the sink {config.name!r} has {{id}}, but the function declares no "
            "output_id.",
            hint='Declare output_id=("field", …) in @function, or write {key} or {row}.',
        )
    if config.options["method"] == "PUT" and named:
        return Guarantee("idempotent", "PUT under a URL that names the record: again is the same")
    if config.flag("deduplicates"):
        return Guarantee("idempotent", "the endpoint knows a request by its Idempotency-Key")
    if config.exactly_once:
        raise ImpossibleDelivery(
            f"The sink {config.name!r} cannot write exactly once: a repeated "
            f"{config.options['method']} {config.options['url']} is another one to the endpoint.",
            hint='Choose method = "PUT" and a URL with {key}, {id} or {row}; or deduplicates = '
            '"true" if the endpoint honours Idempotency-Key; or delivery = "at-least-once".',
        )
    return Guarantee("at-least-once", "a repeated request is another one; Idempotency-Key tells it")


_RULES: Mapping[str, Callable[[SinkConfig, tuple[str, ...]], Guarantee]] = {
    "log": _log,
    "kafka": _kafka,
    "postgres": _table,
    "sqlite": _table,
    "parquet": _files,
    "iceberg": _files,
    "http": _http,
}
