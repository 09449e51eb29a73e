"""What is kept for one key, as bytes: msgpack behind the version of the function that wrote it.

An upgraded function reads old records lazily: added, removed and reordered fields by themselves,
everything else through the function's `from_vN`.
"""

import typing
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Generic, TypeVar, cast

import msgspec

from catchwater.config import CatchwaterError

StateT = TypeVar("StateT")

NEVER = -(2**63)
"""A time before all others: the last write of a record that no event has reached yet."""

_COARSE_MS = 2**22 - 1


class StateUnreadable(CatchwaterError):
    """Stored state does not fit the declared class, and nothing says how to bring it over."""


class Record(msgspec.Struct, Generic[StateT], array_like=True, gc=False):
    """Everything kept for one key."""

    written: int
    """The last write: event time (ms) of the last event or timer handled. Of a function whose state
    never expires it is `coarse`: an event that changes nothing then leaves the record as it was."""
    timers: dict[str, int]
    """Due time by name."""
    seen: dict[Any, int]
    """Event time by id, of the last few events; expired ones may linger."""
    spilled: int
    """The youngest event time among the ids that went to the SEEN table; NEVER: none went."""
    state: StateT
    clock_timers: dict[str, int] | None = None
    """Due time by name, of the timers that wait for the processing clock; None: never had any."""


class _OfState(msgspec.Struct, Generic[StateT], array_like=True, gc=False):
    """A record of which only the state is looked at."""

    written: msgspec.Raw
    timers: msgspec.Raw
    seen: msgspec.Raw
    spilled: msgspec.Raw
    state: StateT


def coarse(at: int) -> int:
    """A time (ms) moved up to the end of its 2**22 ms (70 minutes); equal in every epoch.

    Up and not down: an upgrade that lets state expire must not take it too early.
    """
    return at | _COARSE_MS


def new_record(state: StateT) -> Record[StateT]:
    """The record of a key that no event has reached yet."""
    return Record(NEVER, {}, {}, NEVER, state)


class RecordCodec(Generic[StateT]):
    """Records of one state class to bytes and back, of every version of the function."""

    def __init__(
        self,
        state_type: Any,
        version: int,
        migrations: dict[int, Callable[[dict[str, Any]], Any]],
        enc_hook: Callable[[Any], Any] | None = None,
        dec_hook: Callable[[type, Any], Any] | None = None,
    ) -> None:
        self._version = version.to_bytes(2, "big")
        self._migrations = migrations
        self._class = dict if typing.is_typeddict(state_type) else state_type
        self._label = getattr(state_type, "__name__", str(state_type))
        self._encode = msgspec.msgpack.Encoder(enc_hook=enc_hook or to_plain).encode
        self._decode = msgspec.msgpack.Decoder(
            Record[state_type], dec_hook=dec_hook or from_plain
        ).decode
        self._decode_state = msgspec.msgpack.Decoder(
            _OfState[state_type], dec_hook=dec_hook or from_plain
        ).decode
        self._decode_plain = msgspec.msgpack.Decoder(Record[Any]).decode

    def encode(self, record: Record[StateT]) -> bytes:
        """The version that writes, then the record."""
        return self._version + self._encode(record)

    def check(self, encoded: Iterable[bytes]) -> None:
        """TypeError unless records that this codec has encoded can be read again."""
        try:
            for data in encoded:
                self._decode_state(data[2:])
        except msgspec.ValidationError as error:
            reason = str(error).replace("$[4]", "state")
            raise TypeError(f"the state could not be read again: {reason}") from None

    def decode_many(self, stored: Mapping[bytes, bytes]) -> dict[bytes, Record[StateT]]:
        """As `decode`, by stored key, at half the cost a record."""
        if not self._migrations:
            decode = self._decode
            with suppress(msgspec.ValidationError):
                return {key: decode(data[2:]) for key, data in stored.items()}
        return {key: self.decode(data) for key, data in stored.items()}

    def decode(self, data: bytes) -> Record[StateT]:
        """The record in this version's class; StateUnreadable if it cannot be brought over."""
        if self._migrations and data[:2] != self._version:
            migrate = self._migrations.get(int.from_bytes(data[:2], "big"))
            if migrate is not None:
                record = self._decode_plain(data[2:])
                record.state = self._checked(migrate(record.state), data)
                return record
        try:
            return self._decode(data[2:])
        except msgspec.ValidationError as error:
            raise self._unreadable(data, str(error)) from None

    def _checked(self, given: Any, data: bytes) -> StateT:
        """What a `from_vN` gave, if it is a state and not the dict that it was given."""
        if not isinstance(given, self._class):
            version = int.from_bytes(data[:2], "big")
            raise StateUnreadable(
                f"from_v{version} gave a {type(given).__name__}, which is no {self._label}.",
                hint=f"Return {self._label}(…).",
            )
        return cast(StateT, given)

    def _unreadable(self, data: bytes, reason: str) -> StateUnreadable:
        written_by, version = (int.from_bytes(d, "big") for d in (data[:2], self._version))
        return StateUnreadable(
            f"State written by version {written_by} does not fit {self._label} of version "
            f"{version}: {reason}.",
            hint=f"Give the function a from_v{written_by}(old: dict) that builds {self._label}.",
        )


def is_pydantic(declared: Any) -> bool:
    """Pydantic is never imported by us: a model is known by what it can do."""
    return hasattr(declared, "model_validate") and hasattr(declared, "model_dump")


def to_plain(value: Any) -> Any:
    """What msgspec asks for a value it does not know: a pydantic model as a plain dict."""
    if is_pydantic(value):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} cannot be encoded")


def from_plain(declared: type, value: Any) -> Any:
    """The way back from `to_plain`."""
    if is_pydantic(declared):
        return declared.model_validate(value)  # type: ignore[attr-defined]
    raise TypeError(f"{declared.__name__} cannot be decoded")
