"""What a kind of sink declares (`Kind`), and what `[sink.NAME]` may say by it.

    [sink.alerts]
    kind = "postgres"              # a file of `sinks/kinds`; log if it is left out
    delivery = "exactly-once"      # or "at-least-once"
    from = "rules"                 # the function of a chain whose outputs it takes; else the last
    keep = "7d"                    # how long what was staged is kept for `catchwater sink`

and the kind's own keys. A kind is one file in `sinks/kinds` whose `KIND` says all that others need
to know of it: its options, what it guarantees, how it is named, looked at and opened. The registry
is made from the folder, so a file that is added there is a kind. Importing them all must stay
cheap: what a kind needs (a client's package, Arrow) is imported by its functions.

Opens nothing; `open` does.
"""

import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from catchwater.config import ConfigError, duration_ms, nearest
from catchwater.wire.security.settings import is_ours, parse_security

if TYPE_CHECKING:
    from catchwater.sinks.base import Sink, TargetState
    from catchwater.sinks.open import SinkContext
    from catchwater.sinks.staged import Archive

T = TypeVar("T")

Delivery = Literal["exactly-once", "at-least-once"]

EXACTLY_ONCE: Delivery = "exactly-once"
AT_LEAST_ONCE: Delivery = "at-least-once"

DEFAULT_KIND = "log"

_CREDENTIALS = re.compile(r"//[^/]*@")
_ANY_CREDENTIALS = re.compile(r"//.*@")
"""The same where a password may hold what should have been escaped."""
_TOPIC = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
"""Of a table; what stands beside it has its name and 16 letters more."""


# What a kind declares

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


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of sink: everything that differs from the others and is asked outside its file."""

    name: str
    """As `kind` says it; also the name of its file."""
    options: type[Any]
    """A frozen dataclass of `option`s: the keys of its own."""
    guarantee: "Callable[[SinkConfig, tuple[str, ...]], Guarantee]"
    """What it gives to outputs of this `output_id`. Pure; raises `ImpossibleDelivery`."""
    target: "Callable[[SinkConfig, Path], str]"
    """The unique name of what it writes to, without a secret; connects to nothing.

    Relative paths are meant from the folder.
    """
    place: Callable[[Any], str]
    """The same of its options, for people."""
    named_by: str
    """The option that names the target where another one is wanted, as of a backfill."""
    open: "Callable[[SinkConfig, SinkContext, Archive], Sink]"
    """The sink. Creates what is missing in the target and claims it."""
    look: "Callable[[SinkConfig, SinkContext], TargetState]"
    """What the target is like now; asked once, without patience, and not changed."""
    check: "Callable[[SinkConfig, SinkContext], object]" = lambda config, context: None
    """Refuses what no target could mend. Opens nothing; `options` are checked before."""
    check_options: Callable[[Any], None] = lambda options: None
    """Refuses options that do not go together. Raises `ConfigError`."""
    alter: "Callable[[SinkConfig, SinkContext], None] | None" = None
    """Adds the columns that a table lacks; None: nothing there can be altered."""
    modules: tuple[str, ...] = ()
    """What opening imports besides this file: how a missing package is found before."""
    extra: str = ""
    """The extra of `catchwater` that brings them; empty: none is needed."""
    one_writer: bool = False
    """Two sinks must not share a target."""
    of_the_source: bool = False
    """It writes to the log that the pipeline reads: without that nothing is known of it."""
    cannot_be: Callable[[str, str], str] = lambda was, now: ""
    """Why the second target cannot hold what the first did, though its marks say so; else empty."""
    rebuilds: bool = False
    """All that it holds can take the place of another's at once (`table.TableSink`)."""


def option(
    parse: Callable[[str], T], default: Any = MISSING, *, doc: str, key: str | None = None
) -> T:
    """One key: how its text is read (ValueError says what it must be), and its value if not set.

    Without a default it has to be set.
    """
    kept = {"parse": parse, "doc": doc, "key": key}
    return field(default=default, metadata=kept)  # type: ignore[no-any-return]


def options(parse: Callable[[str], T], *, key: str, doc: str) -> Mapping[str, T]:
    """All keys that begin alike, such as `kafka.*`, by their whole names."""
    kept = {"parse": parse, "doc": doc, "key": key}
    return field(default_factory=dict, metadata=kept)


def key_of(each: "Field[Any]") -> str:
    """How the key of an option is written."""
    return each.metadata["key"] or each.name


@cache
def kinds() -> Mapping[str, Kind]:
    """Every kind by its name: the files of `sinks/kinds`."""
    from catchwater.sinks import kinds as folder

    names = sorted(each.name for each in pkgutil.iter_modules(folder.__path__))
    return {name: importlib.import_module(f"{folder.__name__}.{name}").KIND for name in names}


# How the text of a key is read


def count(text: str) -> int:
    """A whole number from 1 on."""
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 10**9):
        raise ValueError("a whole number from 1 on")
    return int(text)


def duration(text: str) -> int:
    """Milliseconds."""
    try:
        return duration_ms(text)
    except ValueError:
        raise ValueError('a duration such as "30s"') from None


def text(value: str) -> str:
    """Anything but nothing."""
    if not value:
        raise ValueError("a text")
    return value


def anything(value: str) -> str:
    """Another client's own: empty may mean something."""
    return value


def topic(value: str) -> str:
    """A topic's name."""
    if not _TOPIC.fullmatch(value):
        raise ValueError("a topic's name: 1 to 249 letters, digits, dots, hyphens and underscores")
    return value


def table(value: str) -> str:
    """A table's name."""
    if not _TABLE.fullmatch(value):
        raise ValueError("a table's name: letters, digits and underscores, at most 40")
    return value


def flag(value: str) -> bool:
    """True or false."""
    if value not in ("true", "false"):
        raise ValueError("true or false")
    return value == "true"


def one_of(*choices: str) -> Callable[[str], str]:
    """One of these words."""

    def read(value: str) -> str:
        if value not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return value

    return read


# One section

RETRY_MS = 60_000
RETRY = "how long a target that is away is asked again within one epoch"
"""Documentation of `retry`, which most kinds have."""


def _kind(value: str) -> str:
    return one_of(*kinds())(value)


@dataclass(frozen=True)
class _Shared:
    """The keys that every sink has."""

    kind: str = option(_kind, DEFAULT_KIND, doc="which kind of sink")
    delivery: str = option(
        one_of(*get_args(Delivery)), EXACTLY_ONCE, doc="whether an epoch is written once"
    )
    source: str | None = option(
        text, None, key="from", doc="the function of a chain whose outputs it takes"
    )
    keep_ms: int | None = option(
        duration, None, key="keep", doc="how long outputs are kept to verify and mend from"
    )


@dataclass(frozen=True)
class SinkConfig:
    """One sink of a pipeline's file, well formed."""

    name: str
    kind: str
    delivery: Delivery = EXACTLY_ONCE
    options: Any = field(default=None, repr=False)
    """The kind's own (`Kind.options`), passwords among them."""
    source: str | None = None
    """The function of the chain whose outputs it takes; None: the last."""
    keep_ms: int | None = None
    """How long staged outputs are kept; None: as long as a restore could go back to them."""

    @property
    def declared(self) -> Kind:
        """What its kind declares."""
        return kinds()[self.kind]

    @property
    def exactly_once(self) -> bool:
        """Whether an epoch is to be written once."""
        return self.delivery == EXACTLY_ONCE

    @property
    def place(self) -> str:
        """Where it writes to, for people: without user and password, wherever a URL has them."""
        return self.declared.place(self.options)

    @property
    def named(self) -> str:
        """What names its target in its section: a topic, a table or a URL."""
        return str(getattr(self.options, self.declared.named_by))

    def renamed(self, target: str) -> "SinkConfig":
        """The same sink with another target."""
        options = replace(self.options, **{self.declared.named_by: target})
        return replace(self, options=options)


def guarantee(config: SinkConfig, *, output_id: tuple[str, ...] = ()) -> Guarantee:
    """What this sink gives, the function's outputs having this identity.

    Raises `ImpossibleDelivery` (exit 2).
    """
    return config.declared.guarantee(config, output_id)


def without_secrets(url: str) -> str:
    """A URL for messages and records: without user and password, query and fragment."""
    return _ANY_CREDENTIALS.sub("//", url).partition("?")[0].partition("#")[0]


def without_user(url: str) -> str:
    """A URL whose path may hold an `@`, without user, password and query."""
    return _CREDENTIALS.sub("//", url).partition("?")[0]


def known_keys() -> list[str]:
    """Every key that some sink has; for readers that do not know the kind yet."""
    shapes: list[type[Any]] = [_Shared, *(kind.options for kind in kinds().values())]
    return sorted({key_of(each) for shape in shapes for each in fields(shape)})


def options_table() -> str:
    """The keys of each kind, for the page of sinks."""
    lines = ["| kind | key | if left out | |", "|---|---|---|---|"]
    for name, kind in kinds().items():
        for each in fields(kind.options):
            default = _in_words(each) or "-"
            lines.append(f"| `{name}` | `{key_of(each)}` | {default} | {each.metadata['doc']} |")
    return "\n".join(lines) + "\n"


def _in_words(each: "Field[Any]") -> str:
    if each.default is MISSING:
        return "" if key_of(each).endswith("*") else "must be set"
    if each.metadata["parse"] is duration:
        return f"`{each.default // 1000}s`"
    if isinstance(each.default, bool):
        return f"`{str(each.default).lower()}`"
    return f"`{each.default}`" if each.default else ""


def parse(
    name: str, values: Mapping[str, str], where: Callable[[str], str] = lambda key: "the sink"
) -> SinkConfig:
    """Check one sink's section; `where` tells file and line of a key. Raises `ConfigError`."""
    read = _Section(name, values, where)
    shared = _Shared(**read.options(_Shared))
    kind = kinds()[shared.kind]
    for key in values:
        if not _has(kind.options, key) and not _has(_Shared, key):
            raise ConfigError(
                f"{where(key)}: a sink of kind {kind.name} has no key {key}.",
                hint=_way_out(key, values, kind),
            )
    options = kind.options(**read.options(kind.options))
    try:
        kind.check_options(options)
    except ConfigError as error:
        raise ConfigError(f"{where('kind')}: [sink.{name}] {error}", hint=error.hint) from None
    try:
        if is_ours(values):
            parse_security(values)
    except ConfigError as error:
        raise ConfigError(f"{where('kind')}: [sink.{name}]: {error}", hint=error.hint) from None
    return SinkConfig(
        name=name,
        kind=kind.name,
        delivery=AT_LEAST_ONCE if shared.delivery == AT_LEAST_ONCE else EXACTLY_ONCE,
        options=options,
        source=shared.source,
        keep_ms=shared.keep_ms,
    )


@dataclass(frozen=True)
class _Section:
    name: str
    values: Mapping[str, str]
    where: Callable[[str], str]

    def options(self, shape: type[Any]) -> dict[str, Any]:
        """The values of a dataclass of options, those that are set and those that must be."""
        found: dict[str, Any] = {}
        for each in fields(shape):
            key, parse = key_of(each), each.metadata["parse"]
            if key.endswith("*"):
                names = [name for name in self.values if name.startswith(key[:-1])]
                found[each.name] = {name: self._value(name, parse) for name in names}
            elif key in self.values:
                found[each.name] = self._value(key, parse)
            elif each.default is MISSING:
                at = self.where("kind")
                raise ConfigError(f"{at}: {key} in [sink.{self.name}] is missing.")
        return found

    def _value(self, key: str, parse: Callable[[str], T]) -> T:
        try:
            return parse(self.values[key])
        except ValueError as wanted:
            raise ConfigError(
                f"{self.where(key)}: {key} in [sink.{self.name}] must be {wanted}, not "
                f"{self.values[key]!r}."
            ) from None


def _has(shape: type[Any], key: str) -> bool:
    known = [key_of(each) for each in fields(shape)]
    return key in known or any(k[-1] == "*" and key.startswith(k[:-1]) for k in known)


def _way_out(key: str, values: Mapping[str, str], kind: Kind) -> str:
    """What to do about a key that the kind does not have."""
    others = [name for name, other in kinds().items() if _has(other.options, key)]
    if "kind" not in values and others:
        return f"kind is left out, which means {kind.name}; {key} is a key of {', '.join(others)}."
    known = [key_of(each) for shape in (kind.options, _Shared) for each in fields(shape)]
    return f"The nearest is {nearest(key, known)}."
