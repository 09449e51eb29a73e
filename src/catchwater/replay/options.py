"""The options of the data source: those of Spark's own Kafka source, and a few of ours.

An unknown option stops with the nearest known one. Of the `kafka.` options those that change what
is read and those on security are obeyed, those that Spark refuses are refused, and the others,
which tune the Java consumer, have no effect here, nor has the group: offsets stand in Spark's
checkpoint. Pure: it reads a mapping of strings and nothing else.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum

from catchwater.config import CatchwaterError, duration_ms
from catchwater.replay.control import CONTROL_URL, LOCATIONS
from catchwater.replay.plan import OffsetRange
from catchwater.values.settings import (
    BINARY_VALUES,
    REGISTRY_OPTIONS,
    VALUE_OPTIONS,
    BadSchema,
    OnMalformed,
    Registry,
    ValueFormat,
    ValueSettings,
)
from catchwater.wire.client import EARLIEST, LATEST
from catchwater.wire.fields import TopicPartition
from catchwater.wire.security.settings import UNSECURED, Security, parse_security

Offsets = dict[TopicPartition, int]
"""Per partition the offset that is read next."""

TIMESTAMP_MS = "timestampMs"
"""For our own readers: the column `timestamp` as a number, which may lie outside Spark's range."""
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")

_BOOTSTRAP = "kafka.bootstrap.servers"
_ISOLATION = "kafka.isolation.level"
_CLIENT_ID = "kafka.client.id"
_CATALOG = "catchwater.catalog"
_OBJECTS = "catchwater.objects"
BUNDLES = "catchwater.bundles"
"""The option by which `frame` asks for bundles in the place of records."""
RANGES = "assignRanges"
"""The option that names exact ranges of offsets."""
_KNOWN = (
    _BOOTSTRAP,
    "subscribe",
    "subscribePattern",
    "assign",
    RANGES,
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "columns",
    *VALUE_OPTIONS,
    *REGISTRY_OPTIONS,
    "catchwater.read",
    "catchwater.pin.lease",
    "catchwater.wait",
    BUNDLES,
    _CATALOG,
    _OBJECTS,
    CONTROL_URL,
    LOCATIONS,
    # Taken so that a query of Spark's Kafka source runs unchanged; they have no effect.
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
_REFUSED = {
    "kafka.auto.offset.reset": "Say where to begin by startingOffsets.",
    "kafka.enable.auto.commit": "Offsets stand in Spark's checkpoint; leave it out.",
    "kafka.key.deserializer": "Keys come as bytes; decode them in the query.",
    "kafka.value.deserializer": "Values come as bytes; decode them in the query.",
    "kafka.interceptor.classes": "No Java runs here; change the records in the query.",
}
"""As in Spark's own source: without effect, each would mislead."""

_INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state")
"""Kafka's own, which no pattern matches, as in Kafka's consumer; they can be named."""

_MOST = 2**63 - 1
"""Offsets and times have 64 bits in Kafka's protocol."""

_WORDS = {
    "startingOffsets": "Or say earliest, latest or table.",
    "endingOffsets": "Or say latest.",
}


class BadOption(CatchwaterError):
    """An option that does not exist, or a value that it does not take."""

    exit_code = 2


class ReadPath(Enum):
    """Where the records come from: storage if the log is ours, storage, or the leaders."""

    AUTO = "auto"
    DIRECT = "direct"
    KAFKA = "kafka"


@dataclass(frozen=True, slots=True)
class Position:
    """A place in every partition: EARLIEST, LATEST, by timestamp, or given one by one; or, for a
    start, where the topic's table begins."""

    everywhere: int = LATEST
    timestamp_ms: int | None = None
    each: Mapping[TopicPartition, int] | None = None
    each_timestamp_ms: Mapping[TopicPartition, int] | None = None
    or_latest: bool = False
    """A partition without a record as new as its timestamp: its end, instead of an error."""
    of_table: bool = False
    """Where the topic's table begins; where the log does, without one that begins earlier."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a query reads, how much of it at a time, and from where."""

    bootstrap: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()
    ranges: tuple[OffsetRange, ...] = ()
    """Of the assigned partitions, exactly these offsets; by place, none twice. Empty: by position.
    """
    starting: Position | None = None
    ending: Position | None = None
    """None: nothing was said; a batch query then ends at the latest offsets."""
    max_offsets_per_trigger: int | None = None
    min_partitions: int | None = None
    fail_on_data_loss: bool = True
    columns: tuple[str, ...] = COLUMNS[:-1]
    read_path: ReadPath = ReadPath.AUTO
    control_url: str | None = None
    locations: tuple[str, ...] = ()
    """The stores that plans may name; none: see `replay.control`."""
    read_committed: bool = False
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 900_000
    max_records_per_partition: int | None = None
    values: ValueSettings = BINARY_VALUES
    security: Security = UNSECURED
    pin_lease_ms: int = 600_000
    """How long the pin of a batch query outlasts its last renewal; 0: it has none."""
    stream_pin_lease_ms: int = 0
    """The same of a streaming query, which has one only if that is asked for."""
    wait_ms: int = 100
    """How long a streaming query that has read all is kept when it asks for more, at most."""
    catalog: str | None = None
    """Asked instead of brokers: the data directory of a broker alone, or `postgresql://...`."""
    objects: str = ""
    """The URL of the object store, where the catalog does not tell."""
    client_id: str = "catchwater"
    """The name by which brokers know the query, for their quotas."""
    bundled: bool = False
    """Whether tasks hand over bundles."""

    def wants(self, topic: str, partition: int) -> bool:
        """Whether the query reads this partition."""
        if self.assigned:
            return (topic, partition) in self.assigned
        if self.pattern is not None:
            found = re.fullmatch(self.pattern, topic)
            return found is not None and topic not in _INTERNAL_TOPICS
        return topic in self.topics


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """The options as Spark hands them over, in any case. Raises `BadOption`, `ConfigError`."""
    given = {name.lower(): str(value) for name, value in options.items()}
    _refuse_unknown(given)
    read_path = ReadPath(
        _choice(given, "catchwater.read", [path.value for path in ReadPath], "auto")
    )
    _check_place(given, read_path)
    topics, pattern, assigned = _subscription(given)
    ranges = _ranges(given)
    most, least = _count(given, "maxOffsetsPerTrigger"), _count(given, "minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise BadOption(f"minOffsetsPerTrigger {least} is more than maxOffsetsPerTrigger {most}.")
    starting = _position(given, "starting")
    ending = _position(given, "ending")
    _check_order(starting or Position(), ending or Position())
    columns = _columns(given)
    return SourceOptions(
        given.get(_BOOTSTRAP, ""),
        topics,
        pattern,
        assigned or tuple({(each.topic, each.partition): None for each in ranges}),
        ranges,
        starting=starting,
        ending=ending,
        max_offsets_per_trigger=most,
        min_partitions=_count(given, "minPartitions"),
        fail_on_data_loss=_flag(given, "failOnDataLoss", True),
        columns=columns,
        read_path=read_path,
        control_url=given.get(CONTROL_URL),
        locations=tuple(filter(None, map(str.strip, given.get(LOCATIONS, "").split(",")))),
        read_committed=_choice(
            given, _ISOLATION, ["read_uncommitted", "read_committed"], "read_uncommitted"
        )
        == "read_committed",
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=_duration_ms(given, "maxTriggerDelay", "15m"),
        max_records_per_partition=_count(given, "maxRecordsPerPartition"),
        values=parse_values(given, columns),
        security=parse_security(given),
        catalog=given.get(_CATALOG) or None,
        objects=given.get(_OBJECTS, ""),
        client_id=given.get(_CLIENT_ID) or "catchwater",
        bundled=_flag(given, BUNDLES, False),
        pin_lease_ms=_duration_ms(given, "catchwater.pin.lease", "10m"),
        stream_pin_lease_ms=_duration_ms(given, "catchwater.pin.lease", "0"),
        wait_ms=_duration_ms(given, "catchwater.wait", "100ms"),
    )


def _check_place(given: Mapping[str, str], read_path: ReadPath) -> None:
    """Raise `BadOption` unless it is said once where the log is."""
    if given.get(_CATALOG):
        if read_path is ReadPath.KAFKA:
            raise BadOption(f"With {_CATALOG} no broker is asked, so catchwater.read is not kafka.")
    elif given.get(_OBJECTS):
        raise BadOption(f"{_OBJECTS} is for queries without brokers, which name a {_CATALOG}.")
    elif not given.get(_BOOTSTRAP):
        raise BadOption(
            f"The option {_BOOTSTRAP} is missing: it says where the brokers are.",
            hint=f"A log whose brokers are down is read by {_CATALOG}.",
        )


def parse_offsets(text: str, option: str) -> Offsets:
    """Offsets as Spark's Kafka source writes them: `{"topic": {"0": 23, "1": -2}}`."""
    offsets = _by_partition(text, option)
    below = [offset for offset in offsets.values() if offset < EARLIEST]
    if below:
        raise BadOption(f"{option} holds the offset {below[0]}; the least is -2 (earliest).")
    return offsets


def _by_partition(text: str, option: str) -> dict[TopicPartition, int]:
    try:
        content = json.loads(text)
        return {
            (topic, int(partition)): _whole(number)
            for topic, partitions in content.items()
            for partition, number in partitions.items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise BadOption(
            f'{option} is {text!r}, which is not of the form {{"topic": {{"0": 23}}}}.',
            hint=_WORDS.get(option),
        ) from error


def _whole(number: object) -> int:
    """A number of JSON as an offset, time or partition; nothing is rounded. Raises `ValueError`."""
    if type(number) is not int or abs(number) > _MOST:
        raise ValueError(f"{number!r} is no whole number of 64 bits")
    return number


def _refuse_unknown(given: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in (*_KNOWN, _ISOLATION)}
    for name in given:
        if name in _REFUSED:
            raise BadOption(f"The option {name} is not supported.", hint=_REFUSED[name])
        if name not in known and not name.startswith("kafka."):
            nearest = get_close_matches(name, known, 1)
            hint = f"Did you mean {known[nearest[0]]}?" if nearest else None
            raise BadOption(f"There is no option {name!r} of the catchwater source.", hint=hint)


def _subscription(
    given: Mapping[str, str],
) -> tuple[tuple[str, ...], str | None, tuple[TopicPartition, ...]]:
    """Topics, pattern and partitions: exactly one of them is given."""
    options = ("subscribe", "subscribepattern", "assign", RANGES.lower())
    ways = [name for name in options if given.get(name)]
    if len(ways) != 1:
        raise BadOption(
            f"Give exactly one of the options subscribe, subscribePattern, assign, {RANGES}."
        )
    if ways[0] == RANGES.lower():
        return (), None, ()
    text = given[ways[0]]
    if ways[0] == "subscribe":
        names = tuple(name.strip() for name in text.split(",") if name.strip())
        if not names:
            raise BadOption(f"subscribe is {text!r}, which names no topic.")
        return names, None, ()
    if ways[0] == "subscribepattern":
        try:
            return (), re.compile(text).pattern, ()
        except re.error as error:
            raise BadOption(f"subscribePattern {text!r} is no pattern: {error}.") from error
    try:
        content = json.loads(text)
        assigned = tuple((t, _whole(p)) for t, numbers in content.items() for p in numbers)
    except (ValueError, TypeError, AttributeError) as error:
        raise BadOption(
            f'assign is {text!r}, which is not of the form {{"topic": [0, 1]}}.'
        ) from error
    if not assigned:
        raise BadOption(f"assign is {text!r}, which names no partition.")
    return (), None, assigned


def _ranges(given: Mapping[str, str]) -> tuple[OffsetRange, ...]:
    """Exact offsets, in order; nothing else then says where to begin and to end."""
    text = given.get(RANGES.lower())
    if not text:
        return ()
    positions = [name for name in _KNOWN if name.startswith(("starting", "ending"))]
    for name in positions:
        if name.lower() in given:
            raise BadOption(f"{RANGES} says which offsets are read, so {name} is not taken.")
    try:
        ranges = [
            OffsetRange(topic, int(partition), _whole(start), _whole(end))
            for topic, partitions in json.loads(text).items()
            for partition, pairs in partitions.items()
            for start, end in pairs or [(0, 0)]
        ]
    except (ValueError, TypeError, AttributeError) as error:
        raise BadOption(
            f'{RANGES} is {_shortened(text)}, which is not of the form {{"topic": {{"0": [[23, 42]'
            "]}}."
        ) from error
    ranges.sort()
    before = OffsetRange("", -1, 0, 0)
    for each in ranges:
        if not 0 <= each.start < each.end or (each[:2] == before[:2] and each.start < before.end):
            raise BadOption(
                f"{RANGES} holds the offsets {each.start} to {each.end} of {each.topic}-"
                f"{each.partition}, which are none, or partly those of another range.",
                hint="A range begins at its first offset and ends before its second.",
            )
        before = each
    if not ranges:
        raise BadOption(f"{RANGES} names no range.")
    return tuple(ranges)


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:80] + "...")


def _position(given: Mapping[str, str], end: str) -> Position | None:
    """As in Spark, one timestamp goes before one for each partition, and that before offsets."""
    choices = ["error", "latest"]
    strategy = _choice(given, "startingOffsetsByTimestampStrategy", choices, "error")
    or_latest = end == "ending" or strategy == "latest"
    timestamp = _count(given, f"{end}Timestamp", least=0)
    if timestamp is not None:
        return Position(timestamp_ms=timestamp, or_latest=or_latest)
    option = f"{end}OffsetsByTimestamp"
    if option.lower() in given:
        timestamps = _by_partition(given[option.lower()], option)
        if any(each < 0 for each in timestamps.values()):
            raise BadOption(f"{option} holds a time before 1970; it takes milliseconds from 0 on.")
        return Position(each_timestamp_ms=timestamps, or_latest=or_latest)
    option = f"{end}Offsets"
    text = given.get(option.lower())
    if text is None:
        return None
    match text.strip().lower():
        case "latest":
            return Position(LATEST)
        case "earliest" if end == "starting":
            return Position(EARLIEST)
        case "table" if end == "starting":
            return Position(of_table=True)
        case "earliest":
            raise BadOption(
                "endingOffsets cannot be earliest: a query must end behind its start.",
                hint=_WORDS[option],
            )
    offsets = parse_offsets(text, option)
    if end == "ending" and EARLIEST in offsets.values():
        raise BadOption("endingOffsets cannot be -2 (earliest): a query must end behind its start.")
    return Position(each=offsets)


def _check_order(starting: Position, ending: Position) -> None:
    """Raise if the end is before the start, as far as that can be known without the log."""
    times = starting.timestamp_ms, ending.timestamp_ms
    if times[0] is not None and times[1] is not None and times[1] < times[0]:
        raise BadOption(f"endingTimestamp {times[1]} is before startingTimestamp {times[0]}.")
    for before, after in (
        (starting.each, ending.each),
        (starting.each_timestamp_ms, ending.each_timestamp_ms),
    ):
        for key, at in (before or {}).items():
            end = (after or {}).get(key, LATEST)
            if end != LATEST and end < at:
                raise BadOption(f"The query would end at {end} in {key[0]}-{key[1]}, before {at}.")


def _count(given: Mapping[str, str], option: str, *, least: int = 1) -> int | None:
    text = given.get(option.lower())
    if text is None:
        return None
    if not text.strip().isdecimal() or not least <= int(text) <= _MOST:
        raise BadOption(f"{option} is {text!r}, but takes a whole number from {least} on.")
    return int(text)


def _duration_ms(given: Mapping[str, str], option: str, default: str) -> int:
    """As Spark reads times: `90s`, `15m`; a number alone is milliseconds."""
    text = given.get(option.lower(), default)
    number = text.strip()
    try:
        return duration_ms(f"{number}ms" if number.isdecimal() else number.lower())
    except ValueError:
        message = f"{option} is {text!r}, but takes a time like 500ms, 30s, 15m, 1h or 1d."
        raise BadOption(message) from None


def _flag(given: Mapping[str, str], option: str, default: bool) -> bool:
    return _choice(given, option, ["true", "false"], str(default).lower()) == "true"


def _choice(given: Mapping[str, str], option: str, choices: list[str], default: str) -> str:
    text = given.get(option.lower(), default).strip().lower()
    if text not in choices:
        raise BadOption(f"{option} is {text!r}, but takes one of: {', '.join(choices)}.")
    return text


def _columns(given: Mapping[str, str]) -> tuple[str, ...]:
    with_headers = _flag(given, "includeHeaders", False)
    text = given.get("columns")
    if text is None:
        return COLUMNS if with_headers else COLUMNS[:-1]
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    unknown = [name for name in names if name not in COLUMNS]
    if unknown or not names or len(set(names)) < len(names):
        raise BadOption(f"columns is {text!r}, but takes some of: {', '.join(COLUMNS)}; each once.")
    return names


def parse_values(given: Mapping[str, str], columns: tuple[str, ...]) -> ValueSettings:
    """How the options want values decoded in these columns. Raises `BadSchema`, `BadOption`."""
    formats = [each.value for each in ValueFormat]
    kind = ValueFormat(_choice(given, "valueFormat", formats, ValueFormat.BINARY.value))
    others = [name for name in (*VALUE_OPTIONS[1:], *REGISTRY_OPTIONS) if name.lower() in given]
    if kind is ValueFormat.BINARY:
        if others:
            raise BadSchema(f"{others[0]} is given, but valueFormat is binary: nothing is decoded.")
        return BINARY_VALUES
    registry = _registry(given)
    newest = kind is ValueFormat.AVRO and registry is not None
    if not given.get("valueschema", "").strip() and not newest:
        raise BadSchema(f"valueFormat {kind.value} needs the option valueSchema.")
    if (kind is ValueFormat.PROTOBUF) != bool(given.get("valuemessage")):
        raise BadSchema(
            "valueMessage names the message where valueFormat is protobuf, and only there.",
            hint="Give it as package.Message.",
        )
    if "value" not in columns:
        raise BadSchema(f"columns leaves out value, which valueFormat {kind.value} would decode.")
    names = given.get("valuefields", "").split(",")
    return ValueSettings(
        kind,
        given.get("valueschema", ""),
        given.get("valuemessage", ""),
        tuple(name.strip() for name in names if name.strip()),
        OnMalformed(_choice(given, "onMalformed", [each.value for each in OnMalformed], "fail")),
        registry=registry,
    )


def _registry(given: Mapping[str, str]) -> Registry | None:
    url, folder, login = (given.get(name, "") for name in REGISTRY_OPTIONS)
    if not url:
        if folder or login:
            raise BadSchema("There are options of a schema registry, and no schema.registry.url.")
        return None
    return Registry(url, folder or None, login)
