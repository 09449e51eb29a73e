"""What `[sink.NAME]` may say, by kind, checked when the pipeline's file is loaded.

    [sink.alerts]
    kind = "postgres"              # one of KINDS; log if it is left out
    delivery = "exactly-once"      # or "at-least-once"
    from = "rules"                 # the function of a chain whose outputs it takes; else the last
    keep = "7d"                    # how long what was staged is kept for `catchwater sink`

and the kind's own keys. Opens nothing. `guarantee` says what the combination is worth, and
refuses what cannot be.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from catchwater.config import ConfigError, duration_ms, nearest
from catchwater.wire.security.settings import is_ours, parse_security

Delivery = Literal["exactly-once", "at-least-once"]

EXACTLY_ONCE: Delivery = "exactly-once"
AT_LEAST_ONCE: Delivery = "at-least-once"

_CREDENTIALS = re.compile(r"//[^/]*@")
_ANY_CREDENTIALS = re.compile(r"//.*@")
"""The same where a password may hold what should have been escaped."""
_TOPIC = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
"""Of a table; what stands beside it has its name and 16 letters more."""


def _count(text: str) -> None:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 10**9):
        raise ValueError("a whole number from 1 on")


def _duration(text: str) -> None:
    try:
        duration_ms(text)
    except ValueError:
        raise ValueError('a duration such as "30s"') from None


def _text(text: str) -> None:
    if not text:
        raise ValueError("a text")


def _topic(text: str) -> None:
    if not _TOPIC.fullmatch(text):
        raise ValueError("a topic's name: 1 to 249 letters, digits, dots, hyphens and underscores")


def _table(text: str) -> None:
    if not _TABLE.fullmatch(text):
        raise ValueError("a table's name: letters, digits and underscores, at most 40")


def _table_in_schema(text: str) -> None:
    if text.count(".") > 1 or not all(_TABLE.fullmatch(part) for part in text.split(".")):
        raise ValueError(
            "a table's name: letters, digits and underscores, at most 40; a schema may stand "
            "before a dot"
        )


def _table_in_namespace(text: str) -> None:
    if "." not in text.strip("."):
        raise ValueError('a table\'s name with its namespace, such as "lake.alerts"')


def _whatever(text: str) -> None:
    """Another client's own: empty may mean something."""


def _flag(text: str) -> None:
    if text not in ("true", "false"):
        raise ValueError("true or false")


def _one_of(*choices: str) -> Callable[[str], None]:
    def check(text: str) -> None:
        if text not in choices:
            raise ValueError(f"one of {', '.join(choices)}")

    return check


class Option(NamedTuple):
    """One key: what it must look like (ValueError names it), and what it is if not set."""

    check: Callable[[str], None]
    default: str | None = None
    """None: it has to be set; empty: it may be left out."""


_RETRY = Option(_duration, "60s")
"""How long a target that is away is asked again within one epoch."""

KINDS: Mapping[str, Mapping[str, Option]] = {
    "log": {"topic": Option(_topic), "partitions": Option(_count, "")},
    "kafka": {
        "topic": Option(_topic),
        "partitions": Option(_count, ""),
        "retry": _RETRY,
        "kafka.*": Option(_whatever),
    },
    "postgres": {
        "url": Option(_text),
        "table": Option(_table_in_schema),
        "mode": Option(_one_of("append", "upsert"), "append"),
        "retry": _RETRY,
    },
    "sqlite": {
        "path": Option(_text),
        "table": Option(_table),
        "mode": Option(_one_of("append", "upsert"), "append"),
        "retry": _RETRY,
    },
    "parquet": {"url": Option(_text)},
    "iceberg": {
        "table": Option(_table_in_namespace),
        "warehouse": Option(_text, ""),
        "snapshots": Option(_count, "30"),
        "retry": _RETRY,
        "catalog.*": Option(_text),
    },
    "http": {
        "url": Option(_text),
        "method": Option(_one_of("PUT", "POST"), "PUT"),
        "deduplicates": Option(_flag, "false"),
        "concurrency": Option(_count, "16"),
        "timeout": Option(_duration, "10s"),
        "retry": _RETRY,
        "authorization": Option(_text, ""),
    },
}
"""Kind → its own keys; `kafka.*` stands for any key that begins with `kafka.`."""

SHARED: Mapping[str, Option] = {
    "kind": Option(_one_of(*KINDS), "log"),
    "delivery": Option(_one_of(*get_args(Delivery)), EXACTLY_ONCE),
    "from": Option(_text, ""),
    "keep": Option(_duration, ""),
}
"""The keys that every sink has."""


@dataclass(frozen=True)
class SinkConfig:
    """One sink of a pipeline's file, every key of its kind present and well formed."""

    name: str
    kind: str = "log"
    delivery: Delivery = EXACTLY_ONCE
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The kind's own keys, passwords among them; what may be left out and was is empty."""
    source: str | None = None
    """The function of the chain whose outputs it takes; None: the last."""
    keep_ms: int | None = None
    """How long staged outputs are kept; None: as long as a restore could go back to them."""

    @property
    def exactly_once(self) -> bool:
        """Whether an epoch is to be written once."""
        return self.delivery == EXACTLY_ONCE

    @property
    def place(self) -> str:
        """Where it writes to, for people: without user and password, wherever a URL has them."""
        found = [self.options.get(key) for key in ("topic", "path", "warehouse", "table")]
        credentials = _ANY_CREDENTIALS if self.kind == "postgres" else _CREDENTIALS
        url = credentials.sub("//", self.options.get("url", "")).partition("?")[0]
        return " ".join(each for each in (url, *found) if each)

    def number(self, key: str) -> int:
        """An option that is a count."""
        return int(self.options[key])

    def milliseconds(self, key: str) -> int:
        """An option that is a duration."""
        return duration_ms(self.options[key])

    def flag(self, key: str) -> bool:
        """An option that is true or false."""
        return self.options[key] == "true"


def without_secrets(url: str) -> str:
    """A URL for messages and records: without user and password, query and fragment."""
    return _ANY_CREDENTIALS.sub("//", url).partition("?")[0].partition("#")[0]


def known_keys() -> list[str]:
    """Every key that some sink has; for readers that do not know the kind yet."""
    return sorted({*SHARED, *(key for options in KINDS.values() for key in options)})


def parse(
    name: str, values: Mapping[str, str], where: Callable[[str], str] = lambda key: "the sink"
) -> SinkConfig:
    """Check one sink's section; `where` tells file and line of a key. Raises `ConfigError`."""
    shared = {key: _value(name, key, SHARED[key], values, where) for key in SHARED}
    own = _spelled_out(KINDS[shared["kind"]], values)
    for key in values:
        if key not in own and key not in SHARED:
            raise ConfigError(
                f"{where(key)}: a sink of kind {shared['kind']} has no key {key}.",
                hint=_way_out(key, values, shared["kind"]),
            )
    if shared["kind"] == "iceberg" and not _names_catalog(values):
        raise ConfigError(
            f"{where('kind')}: [sink.{name}] names no catalog.",
            hint='Set catalog.uri and what else pyiceberg needs, or warehouse = "folder".',
        )
    if is_ours(values):
        try:
            parse_security(values)
        except ConfigError as error:
            raise ConfigError(f"{where('kind')}: [sink.{name}]: {error}", hint=error.hint) from None
    return SinkConfig(
        name=name,
        kind=shared["kind"],
        delivery=AT_LEAST_ONCE if shared["delivery"] == AT_LEAST_ONCE else EXACTLY_ONCE,
        options={key: _value(name, key, option, values, where) for key, option in own.items()},
        source=shared["from"] or None,
        keep_ms=duration_ms(shared["keep"]) if shared["keep"] else None,
    )


def _names_catalog(values: Mapping[str, str]) -> bool:
    return any(key == "warehouse" or key.startswith("catalog.") for key in values)


def _way_out(key: str, values: Mapping[str, str], kind: str) -> str:
    """What to do about a key that the kind does not have."""
    others = [other for other, options in KINDS.items() if key in _spelled_out(options, values)]
    if "kind" not in values and others:
        return f"kind is left out, which means {kind}; {key} is a key of {', '.join(others)}."
    return f"The nearest is {nearest(key, [*KINDS[kind], *SHARED])}."


def _spelled_out(options: Mapping[str, Option], values: Mapping[str, str]) -> Mapping[str, Option]:
    """The options with the keys that are there for those that stand for any."""
    found = {key: option for key, option in options.items() if not key.endswith("*")}
    for prefix in options.keys() - found.keys():
        given = [key for key in values if key.startswith(prefix[:-1])]
        found |= dict.fromkeys(given, options[prefix])
    return found


def _value(
    name: str, key: str, option: Option, values: Mapping[str, str], where: Callable[[str], str]
) -> str:
    if key not in values:
        if option.default is None:
            raise ConfigError(f"{where('kind')}: {key} in [sink.{name}] is missing.")
        return option.default
    try:
        option.check(values[key])
    except ValueError as wanted:
        raise ConfigError(
            f"{where(key)}: {key} in [sink.{name}] must be {wanted}, not {values[key]!r}."
        ) from None
    return values[key]
