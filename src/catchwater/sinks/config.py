"""Sinks as a pipeline's file has them: a kind's declaration (`Kind`), `[sink.NAME]`, and opening.

    [sink.alerts]
    kind = "postgres"              # a file of `sinks/kinds`; log if it is left out
    delivery = "exactly-once"      # or "at-least-once"
    from = "rules"                 # the function of a chain whose outputs it takes; else the last
    keep = "7d"                    # how long staged outputs are kept for `catchwater sink`

and the kind's own keys. A kind is one file in `sinks/kinds`, whose `KIND` declares everything that
other modules need: its options, its guarantee, and how it is named, looked at and opened. The
registry is made from the folder, so adding a file adds a kind. Importing all of them must stay
cheap: packages that a kind needs (a client, Arrow) are imported by its functions.

Opening a sink creates missing parts of the target (a topic, a table) and claims it; it refuses a
target that cannot take the outputs. What a sink learns of its pipeline is its `SinkContext`.
"""

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args
from urllib.parse import urlsplit

from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError, ConfigError, duration_ms, nearest
from catchwater.recovery.fenced import Claim
from catchwater.replay.control import Control
from catchwater.sinks.base import Sink, TargetState
from catchwater.sinks.epochs import Archive, Owner, StagedFile, staged_folder
from catchwater.wire.security.settings import UNSECURED, Security, is_ours, parse_security

T = TypeVar("T")

Delivery = Literal["exactly-once", "at-least-once"]

EXACTLY_ONCE: Delivery = "exactly-once"
AT_LEAST_ONCE: Delivery = "at-least-once"

DEFAULT_KIND = "log"

_CREDENTIALS = re.compile(r"//[^/]*@")
_ANY_CREDENTIALS = re.compile(r"//.*@")
"""For URLs whose password may contain characters that should have been escaped."""
_TOPIC = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
"""A table's name; the tables beside it have names that are 16 letters longer."""


# What a sink learns of its pipeline


@dataclass(frozen=True)
class SinkContext:
    """The settings of its pipeline that a sink needs."""

    pipeline: str
    objects: str
    """URL of the checkpoint's object store, with staged outputs under `staged/<sink>/`."""
    folder: Path
    """Relative paths in the pipeline's file start here."""
    bootstrap: str = ""
    """The brokers of the source."""
    security: Security = UNSECURED
    """How connections to them are secured."""
    control: Control | None = None
    """The control API of the source's log; None if the source is another Kafka."""
    generation: int = 0
    """Raised by a rollback, and by a restore that writes outputs anew."""
    output_type: Any = None
    """The type of the function's outputs; None: dead letters or late events."""
    output_id: tuple[str, ...] = ()
    clock: Clock = SYSTEM
    claim: Claim | None = None
    """The fence of this driver, where the checkpoint is at a URL and this process holds it."""
    hold: Callable[[], None] = lambda: None
    """Raises `LeaseLost` where another driver has taken over; cheap enough for each request."""

    def owner(self, sink: str) -> Owner:
        """The writer of this sink's target."""
        return Owner(self.pipeline, sink, self.generation, self.claim)


# The declaration of a kind

Level = Literal["exactly-once", "idempotent", "at-least-once"]


class ImpossibleDelivery(ConfigError):
    """The target cannot give the requested `delivery`; the hint names an alternative."""


@dataclass(frozen=True, slots=True)
class Guarantee:
    """The guarantee for readers of the target.

    `exactly-once`: an epoch is visible once, as a whole. `idempotent`: a repeated epoch changes
    nothing, but readers may see a part of it before the rest. `at-least-once`: a repeated epoch is
    there twice; rows have an identity to remove duplicates by.
    """

    level: Level
    why: str


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of sink: everything about it that other modules need."""

    name: str
    """The value of `kind`; also the name of its file."""
    options: type[Any]
    """A frozen dataclass of `option`s: the kind's own keys."""
    guarantee: "Callable[[SinkConfig, tuple[str, ...]], Guarantee]"
    """The guarantee for outputs with this `output_id`. Pure; raises `ImpossibleDelivery`."""
    target: "Callable[[SinkConfig, Path], str]"
    """The unique name of its target, without secrets; does not connect.

    Relative paths start in the folder.
    """
    place: Callable[[Any], str]
    """A description of the target from its options, for people."""
    named_by: str
    """The option that a backfill replaces to write to another target."""
    keeps: Callable[[Any], Mapping[str, Any]] = lambda options: {}
    """Options that are made from that one where they are not set, and stay what they were."""
    open: "Callable[[SinkConfig, SinkContext, Archive], Sink]"
    """Opens the sink: creates missing parts of the target and claims it."""
    look: "Callable[[SinkConfig, SinkContext], TargetState]"
    """The present state of the target; read once, without retries, and not changed."""
    check: "Callable[[SinkConfig, SinkContext], object]" = lambda config, context: None
    """Refuses settings that no target could take. Opens nothing; `options` are checked before."""
    ask: "Callable[[SinkConfig, SinkContext], None]" = lambda config, context: None
    """Asks whom else it needs, such as a schema registry, whether an opening would be refused."""
    check_options: Callable[[Any], None] = lambda options: None
    """Refuses options that contradict each other. Raises `ConfigError`."""
    alter: "Callable[[SinkConfig, SinkContext], None] | None" = None
    """Adds missing columns to a table; None: the target cannot be altered."""
    modules: tuple[str, ...] = ()
    """The packages that opening imports, so that a missing one is found earlier."""
    extra: str = ""
    """The extra of `catchwater` that installs them; empty if none is needed."""
    one_writer: bool = False
    """Whether two sinks must not share a target."""
    of_the_source: bool = False
    """Whether it writes to the log that the pipeline reads, and needs that log for everything."""
    cannot_be: Callable[[str, str], str] = lambda was, now: ""
    """Why the second target cannot be the first one moved, though it has its marks; else empty."""
    reads_many: bool = True
    """Whether many rows are read back by one request, so that a running pipeline may compare."""
    aside: "Callable[[SinkConfig, str], str | None]" = lambda config, label: None
    """Where a rebuild of this label makes its content before that takes the target's place.

    Another target, or empty: nowhere, what is staged is enough (`SinkConfig.held`). None: it cannot
    be rebuilt. Raises `ConfigError` for a label that cannot be used.
    """
    replaces: Callable[[Any], str] = lambda options: ""
    """Which earlier outputs a later one replaces, for people; empty: every output stays."""


def option(
    parse: Callable[[str], T], default: Any = MISSING, *, doc: str, key: str | None = None
) -> T:
    """One key: the parser of its text (its ValueError says what is expected), and the default.

    A key without a default must be set.
    """
    kept = {"parse": parse, "doc": doc, "key": key}
    return field(default=default, metadata=kept)  # type: ignore[no-any-return]


def options(parse: Callable[[str], T], *, key: str, doc: str) -> Mapping[str, T]:
    """All keys with one prefix, such as `kafka.*`, by their full names."""
    kept = {"parse": parse, "doc": doc, "key": key}
    return field(default_factory=dict, metadata=kept)


def key_of(each: "Field[Any]") -> str:
    """The key of an option as written in a file."""
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
RETRY = "how long an unavailable target is tried again within one epoch"
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
    """One sink of a pipeline's file, after its keys were checked."""

    name: str
    kind: str
    delivery: Delivery = EXACTLY_ONCE
    options: Any = field(default=None, repr=False)
    """The kind's own options (`Kind.options`), which may include passwords."""
    source: str | None = None
    """The function of the chain whose outputs it takes; None: the last."""
    keep_ms: int | None = None
    """How long staged outputs are kept; None: as long as a restore could go back to them."""
    held: bool = False
    """Outputs are staged and marked, and none is sent: a rebuild has not taken its place yet."""

    @property
    def declared(self) -> Kind:
        """The declaration of its kind."""
        return kinds()[self.kind]

    @property
    def exactly_once(self) -> bool:
        """Whether an epoch is to be written once."""
        return self.delivery == EXACTLY_ONCE

    @property
    def place(self) -> str:
        """A description of its target for people, without user and password."""
        return self.declared.place(self.options)

    @property
    def named(self) -> str:
        """The name of its target in its section: a topic, a table or a URL."""
        return str(getattr(self.options, self.declared.named_by))

    def put_aside(self, target: str) -> "SinkConfig":
        """The same sink, as a rebuild has it until it takes its place (`Kind.aside`)."""
        return self.renamed(target) if target else replace(self, held=True)

    def renamed(self, target: str) -> "SinkConfig":
        """The same sink with another target."""
        kept = self.declared.keeps(self.options)
        options = replace(self.options, **kept, **{self.declared.named_by: target})
        return replace(self, options=options)


def guarantee(config: SinkConfig, *, output_id: tuple[str, ...] = ()) -> Guarantee:
    """The guarantee of this sink for outputs with this identity.

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
    """Every key of any kind of sink; for readers that do not know the kind yet."""
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


# Opening


# The options of a kind that writes to a topic


def _registry_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise ValueError("the URL of a schema registry without a login, such as http://host:8081")
    return value


@dataclass(frozen=True)
class TopicOptions:
    """The keys of a sink that writes to a topic."""

    topic: str = option(topic, doc="the topic, which is made if it is missing")
    partitions: int | None = option(count, None, doc="of a topic that has to be made")
    value_format: str = option(
        one_of("json", "avro", "protobuf"), "json", key="valueFormat", doc="of the values"
    )
    value_schema: str = option(
        text, "", key="valueSchema",
        doc="a schema, or the path of one; of Protobuf that of a descriptor set",
    )  # fmt: skip
    value_message: str = option(
        text, "", key="valueMessage", doc="of Protobuf the message's full name"
    )
    registry_url: str = option(
        _registry_url, "", key="schema.registry.url",
        doc="a registry: each value begins with the id that its schema has there",
    )  # fmt: skip
    registry_login: str = option(
        anything, "", key="schema.registry.basic.auth.user.info",
        doc="`user:password`; best from the environment",
    )  # fmt: skip
    subject: str = option(
        text, "", key="schema.registry.subject", doc="else the topic's name and `-value`"
    )
    register: bool = option(
        flag, False, key="schema.registry.register",
        doc="whether the schema is registered if it is not there",
    )  # fmt: skip

    @property
    def is_plain(self) -> bool:
        """Whether the values are JSON, as they leave their function."""
        return self.value_format == "json" and not self.registry_url


def check_together(options: TopicOptions) -> None:
    """Refuse keys that contradict each other. Raises `ConfigError`."""
    kind = options.value_format
    if options.is_plain and (options.value_schema or options.value_message):
        raise ConfigError(
            "has a valueSchema or a valueMessage, and its values are plain JSON.",
            hint="valueFormat is avro or protobuf, or schema.registry.url names a registry.",
        )
    if not options.is_plain and not options.value_schema:
        raise ConfigError(
            f"writes {kind}, and nothing says with which schema.",
            hint="valueSchema is a schema or its path; of Protobuf the path of a descriptor set.",
        )
    if (kind == "protobuf") != bool(options.value_message):
        raise ConfigError("has a valueMessage where valueFormat is protobuf, and only there.")
    if not options.registry_url and (options.register or options.subject or options.registry_login):
        raise ConfigError("has keys of a schema registry, and no schema.registry.url.")


def check_values(config: SinkConfig, context: SinkContext) -> None:
    """Refuse a schema that the outputs do not fit, as far as it shows. Raises `ConfigError`."""
    if not config.options.is_plain:
        from catchwater.sinks.topic_values import settings_of

        settings_of(config, context)


class PackageMissing(CatchwaterError):
    """A sink needs a package that is not installed."""

    exit_code = 2


def open_sink(config: SinkConfig, context: SinkContext) -> Sink:
    """Open one sink. Raises `ConfigError`, and the errors of the kind's target."""
    guarantee(config, output_id=context.output_id)
    with _packages_named(config):
        return config.declared.open(config, context, truth_of(config, context))


def truth_of(config: SinkConfig, context: SinkContext) -> Archive:
    """What is staged for a sink beside its checkpoint; opens no target."""
    stager = StagedFile(context.objects, staged_folder(config.name))
    return Archive(stager, keep_ms=config.keep_ms)


def check_sink(config: SinkConfig, context: SinkContext) -> None:
    """Refuse settings that no target could take: a delivery, a URL, a name, a field's type.

    Opens nothing. Raises as `open_sink`, for errors that can be found without the target.
    """
    guarantee(config, output_id=context.output_id)
    with _packages_named(config):
        for module in config.declared.modules:
            importlib.import_module(module)
        config.declared.check(config, context)


def target_of(config: SinkConfig, folder: Path) -> str:
    """The unique name of a sink's target, without credentials.

    Two names of one server count as two targets. Relative paths start in the folder. Does not
    connect. Raises `ConfigError`, `PackageMissing`.
    """
    with _packages_named(config):
        return f"{config.kind} {config.declared.target(config, folder)}"


def look_at(config: SinkConfig, context: SinkContext) -> TargetState:
    """The present state of a sink's target; read once, without retries, and not changed.

    Raises the errors of an unavailable target, and `TargetTaken`.
    """
    with _packages_named(config):
        return config.declared.look(config, context)


def ask_others(config: SinkConfig, context: SinkContext) -> None:
    """Raise what opening would raise because of others than the target, and change nothing."""
    with _packages_named(config):
        config.declared.ask(config, context)


def alter_target(config: SinkConfig, context: SinkContext) -> None:
    """Add to a table the columns that it lacks. Raises `TargetDiffers` if that is not enough."""
    alter = config.declared.alter
    assert alter is not None, "only a table is found to lack columns that can be added"
    with _packages_named(config):
        alter(config, context)


def preload(names: Iterable[str]) -> None:
    """Import the packages of these kinds ahead of `open_sink`, to save time then.

    A missing package is ignored here; `open_sink` names it.
    """
    for name in names:
        for module in kinds()[name].modules:
            with suppress(ModuleNotFoundError):
                importlib.import_module(module)


@contextmanager
def _packages_named(config: SinkConfig) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise PackageMissing(
            f"The sink {config.name!r} of kind {config.kind} needs the package {error.name}, "
            "which is not installed.",
            hint=f"pip install 'catchwater[{config.declared.extra or config.kind}]'",
        ) from error
