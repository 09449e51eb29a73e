"""Whether values fit what their topic says of them (`catchwater.value.validation`).

`id`: a value begins with the id of a schema that the registry has under TOPIC-value. `schema`: and
is a value of it. `declared`: it is one of the schema that the topic itself declares. A tombstone
fits.

The registry is asked by a thread of its own, never on the event loop nor by the thread that looks
into batches: the batch that meets an id first is refused with an error after which clients try
again, and so are its like until the registry has answered. What was learned of an id holds as long
as the broker runs; that an id is not there, for `_MISSING_S`. Topics that do not ask for this cost
nothing.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

from catchwater.broker_config import BrokerConfig
from catchwater.catalog.rows import Topic
from catchwater.clock import Clock
from catchwater.log.topic_settings import declared
from catchwater.log.write.prepare import Fit, Undecided
from catchwater.values.settings import BadSchema, ValueSettings

if TYPE_CHECKING:
    from catchwater.values.decoder import Decoder
    from catchwater.values.registry import RegistryClient

BY_ID, BY_SCHEMA, DECLARED = "id", "schema", "declared"

_MISSING_S = 10.0
_PAUSE_S = 1.0
"""How long the registry is left alone after it did not answer."""
_EVER = float("inf")
_MOST_IDS = 10_000
"""Known at once; a client may send any number."""

_UNUSABLE = (BadSchema, ValueError, TypeError, AttributeError, RecursionError)
"""What a registry's schema may be the reason for, before a value is there."""

_Asked = tuple[str, int]
"""A subject, and the id of a schema."""


class _Verdict(NamedTuple):
    """What is known of an id, and until when on the monotonic clock."""

    until_s: float
    fit: Callable[[bytes], str | None] | None = None
    refused: str = ""
    """Why no value with this id fits."""
    unknown: str = ""
    """Why nothing is known: values are neither taken nor refused for good."""


class ValueChecks:
    """What a broker's topics ask; `of` is called on the event loop, what it returns elsewhere."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._known: dict[_Asked, _Verdict] = {}
        self._asking: set[_Asked] = set()
        self._lock = threading.Lock()
        self._questions: SimpleQueue[_Asked] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._declared: dict[tuple[bytes, str], Fit] = {}

    def of(self, topic: Topic, validation: str) -> Fit:
        """Why a value does not fit; raises `Undecided` where that is not known yet."""
        if validation == DECLARED:
            return self._of_declared(topic)
        subject, with_schema = f"{topic.name}-value", validation == BY_SCHEMA
        return lambda value: self._why_not(subject, value, with_schema)

    def _why_not(self, subject: str, value: bytes, with_schema: bool) -> str | None:
        from catchwater.values.registry import FRAME_BYTES, framed

        try:
            schema_id = framed(value)
        except ValueError as problem:
            return str(problem)
        known = self._known.get((subject, schema_id))
        if known is None or known.until_s <= self._clock.monotonic_s():
            self._ask((subject, schema_id))
            known = _Verdict(0.0, unknown="it is being asked for")
        if known.unknown:
            registry = self._config.catchwater_schema_registry_url
            raise Undecided(
                f"The schema with the id {schema_id} is not known here yet: {known.unknown}. The "
                f"topic takes no value before; the registry is {registry}."
            )
        if known.refused:
            return known.refused
        return known.fit(value[FRAME_BYTES:]) if with_schema and known.fit is not None else None

    def _ask(self, asked: _Asked) -> None:
        with self._lock:
            if asked in self._asking:
                return
            self._asking.add(asked)
            if self._thread is None:
                # A daemon: a registry that hangs does not keep a broker from ending.
                self._thread = threading.Thread(target=self._work, name="schemas", daemon=True)
                self._thread.start()
        self._questions.put(asked)

    def _work(self) -> None:
        from catchwater.values.registry import RegistryClient
        from catchwater.values.settings import Registry

        url, login = self._config.catchwater_schema_registry_url, self._config.schema_registry_login
        client = RegistryClient(Registry(url, login=login), self._clock)
        while True:
            asked = self._questions.get()
            found = self._learned(client, asked)
            with self._lock:
                if len(self._known) >= _MOST_IDS:
                    self._known.clear()
                self._known[asked] = found
                self._asking.discard(asked)

    def _learned(self, client: "RegistryClient", asked: _Asked) -> _Verdict:
        from catchwater.values.fit import fit_of
        from catchwater.values.registry import SchemaUnavailable

        subject, schema_id = asked
        try:
            found = client.under(subject, schema_id)
            return _Verdict(_EVER, fit=fit_of(found))
        except LookupError as problem:
            return _Verdict(self._clock.monotonic_s() + _MISSING_S, refused=str(problem.args[0]))
        except SchemaUnavailable as problem:
            return _Verdict(self._clock.monotonic_s() + _PAUSE_S, unknown=str(problem).rstrip("."))
        except _UNUSABLE as problem:
            why = f"the schema with the id {schema_id} cannot be used: {problem}"
            return _Verdict(self._clock.monotonic_s() + _MISSING_S, refused=why)

    def _of_declared(self, topic: Topic) -> Fit:
        settings = declared(topic)
        if settings is None:
            return lambda value: "the topic declares no schema that its format goes with"
        key = (topic.id, settings.schema)
        if key not in self._declared:
            self._declared.clear()
            self._declared[key] = _Declared(settings)
        return self._declared[key]


class _Declared:
    """A value of the schema that a topic declares; its decoder is made when it is first called."""

    def __init__(self, settings: ValueSettings) -> None:
        self._settings = settings
        self._decoder: Decoder | None = None

    def __call__(self, value: bytes) -> str | None:
        if self._decoder is None:
            from catchwater.values.typed import open_decoder

            self._decoder = open_decoder(self._settings)
        try:
            self._decoder.decode(value)
        except self._decoder.errors as error:
            return str(error) or type(error).__name__
        return None
