"""Kafka's encodings of numbers, lengths, strings and tagged fields, both ways; no message.

The sender of a message says how long its strings and arrays are. A `Cursor` checks every such
claim against the bytes that are really there, before anything is allocated for it
(CVE-2026-111108, CVE-2026-111115: a few bytes that announce millions of elements), and never
goes past the end. *Flexible* versions of a message write lengths as varints, one more than the
length, and end structs with tagged fields (KIP-482); the others write 2 or 4 bytes.
"""

from struct import Struct
from typing import Any, NamedTuple, TypeAlias

from catchwater.config import CatchwaterError

# Arrays, their elements and tagged fields of one request. A request for each of 100,000
# partitions is within Kafka's habits; each element costs a server about 3 µs and 200 bytes.
MAX_REQUEST_ELEMENTS = 250_000

Buffer: TypeAlias = bytes | bytearray | memoryview
TopicPartition: TypeAlias = tuple[str, int]

I8, I16, I32, I64 = Struct(">b"), Struct(">h"), Struct(">i"), Struct(">q")
# For other modules: Python 3.11 makes an object for each call of a method of an imported name.
pack_i8, pack_i16, pack_i32 = I8.pack, I16.pack, I32.pack
NO_TAGGED_FIELDS = b"\x00"
_ZERO_ID = bytes(16)
_HEADER = Struct(">hhih")
"""API key, version, correlation id, length of the client id."""

_VARINT_SHIFTS = (0, 7, 14, 21, 28)
# Nearly every length is one byte.
_ONE_BYTE_VARINTS = [bytes([value]) for value in range(0x80)]


class ApiVersion(NamedTuple):
    """An API key, and one version of that API."""

    key: int
    version: int


class MalformedMessage(CatchwaterError):
    """The bytes are no message of the API and version they claim to be."""


class Cursor:
    """A place in a received message. Every step forward is checked against its end."""

    __slots__ = ("_elements_left", "at", "end", "view")

    def __init__(
        self, view: memoryview, at: int = 0, max_elements: int = MAX_REQUEST_ELEMENTS
    ) -> None:
        self.view = view
        self.at = at
        self.end = len(view)
        self._elements_left = max_elements

    def take(self, size_bytes: int) -> int:
        """Where the next `size_bytes` begin; the cursor stands behind them."""
        start = self.at
        if not 0 <= size_bytes <= self.end - start:
            raise self._too_short(size_bytes)
        self.at = start + size_bytes
        return start

    def number(self, form: Struct) -> Any:
        """The next number, big-endian."""
        at = self.at
        if at + form.size > self.end:
            raise self._too_short(form.size)
        self.at = at + form.size
        return form.unpack_from(self.view, at)[0]

    def numbers(self, form: Struct) -> tuple[Any, ...]:
        """The next numbers that lie side by side, big-endian."""
        at = self.at
        if at + form.size > self.end:
            raise self._too_short(form.size)
        self.at = at + form.size
        return form.unpack_from(self.view, at)

    def _too_short(self, size_bytes: int) -> MalformedMessage:
        return MalformedMessage(
            f"At byte {self.at} of a message {size_bytes} bytes were announced, but "
            f"{self.end - self.at} are left."
        )

    def varint(self) -> int:
        """The next unsigned varint, of at most 5 bytes (KIP-482)."""
        at = self.at
        # Nearly every length, and every absence of tagged fields, is one byte.
        if at < self.end and (byte := self.view[at]) < 0x80:
            self.at = at + 1
            return byte
        value = 0
        for shift in _VARINT_SHIFTS:
            if at == self.end:
                break
            byte = self.view[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.at = at
                return value
        raise MalformedMessage(f"The varint at byte {self.at} is cut short or too long.")

    def string(self, size_bytes: int) -> str:
        start, end = self.at, self.at + size_bytes
        if not start <= end <= self.end:
            raise self._too_short(size_bytes)
        self.at = end
        try:
            return str(self.view[start:end], "utf-8")
        except UnicodeDecodeError:
            raise MalformedMessage(f"The string at byte {start} is not UTF-8.") from None

    def bytes(self, size_bytes: int) -> bytes:
        start = self.take(size_bytes)
        return bytes(self.view[start : self.at])

    def elements(self, count: int) -> int:
        """`count` as announced, if that many elements can follow: each has a byte at least."""
        if not 0 <= count <= self._elements_left or count > self.end - self.at:
            raise MalformedMessage(f"At byte {self.at} {count} elements were announced.")
        self._elements_left -= count
        return count

    def skip_tagged_fields(self) -> None:
        at = self.at
        if at < self.end and self.view[at] == 0:  # nearly always there are none
            self.at = at + 1
            return
        for _ in range(self.elements(self.varint())):
            self.varint()
            self.take(self.varint())

    def size(self, flexible: bool) -> int:
        """The length announced of an array or of bytes; -1 is null."""
        size: int = self.varint() - 1 if flexible else self.number(I32)
        return size

    def count(self, flexible: bool) -> int:
        """The length of an array that is not null and can be there."""
        return self.elements(self.varint() - 1 if flexible else self.number(I32))

    def text(self, flexible: bool) -> str:
        return self.string(self.varint() - 1 if flexible else self.number(I16))

    def nullable_text(self, flexible: bool) -> str | None:
        size_bytes = self.varint() - 1 if flexible else self.number(I16)
        return None if size_bytes == -1 else self.string(size_bytes)


def body_of(frame: memoryview, rest_at: int, flexible: bool) -> Cursor:
    """Where the body of a request begins, of what follows the part of the header that all have."""
    cursor = Cursor(frame, rest_at)
    if flexible:
        cursor.skip_tagged_fields()
    return cursor


def encode_size(size: int, flexible: bool) -> bytes:
    """The length of an array or of bytes; -1 is null."""
    return encode_varint(size + 1) if flexible else I32.pack(size)


def encode_text(text: str | None, flexible: bool) -> bytes:
    """A string that may be null."""
    if text is None:
        return b"\x00" if flexible else b"\xff\xff"
    data = text.encode()
    return (encode_varint(len(data) + 1) if flexible else I16.pack(len(data))) + data


def encode_varint(value: int) -> bytes:
    """An unsigned varint: seven bits a byte, the lowest first."""
    if value < 0x80:
        return _ONE_BYTE_VARINTS[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_header(api: ApiVersion, correlation_id: int, client_id: str) -> bytes:
    """A request's header in its version 1, which precedes every request that is not flexible."""
    name = client_id.encode()
    return _HEADER.pack(api.key, api.version, correlation_id, len(name)) + name


def take_topic(cursor: Cursor, flexible: bool, by_id: bool) -> tuple[str | None, bytes | None]:
    """A topic by its name or, in later versions of a message, by its id (KIP-516)."""
    if by_id:
        return None, cursor.bytes(16)
    return cursor.text(flexible), None


def encode_topic(name: str | None, topic_id: bytes | None, flexible: bool, by_id: bool) -> bytes:
    """The reverse of `take_topic`."""
    if by_id:
        return topic_id or _ZERO_ID
    assert name is not None, "a reply in this version names its topics"
    return encode_text(name, flexible)
