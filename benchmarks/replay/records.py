"""The same JSON records for every broker, in values of several sizes and batches of every codec."""

from dataclasses import dataclass

from benchmarks.load import NOW_MS, Connection, create_topic, frame_of_batch, produce_error
from catchwater.wire.arrow import encode_batch
from catchwater.wire.codecs import Codec

BATCH_BYTES = 800_000
PARTITIONS = 2
SCHEMA = "card string, id string, at long, amount double, note string"


@dataclass(frozen=True)
class Shape:
    """Records of one size in batches of one codec; bytes of a value."""

    value_bytes: int
    codec: Codec
    records: int

    @property
    def topic(self) -> str:
        return f"history-{self.value_bytes}-{self.codec.name.lower()}"

    def __str__(self) -> str:
        codec = "uncompressed" if self.codec is Codec.NONE else self.codec.name.lower()
        return f"{self.value_bytes} B JSON, {codec}"


def value(n: int, size: int) -> bytes:
    """The n-th record's value, filled up with text that compresses as text does."""
    head = b'{"card":"card-%06d","id":"%09d","at":%d,"amount":%d.25,"note":"' % (
        n % 100_000, n, NOW_MS + n, n % 1000,
    )  # fmt: skip
    room = size - len(head) - 2
    words = b"%x " % (n * 2654435761 % 2**32)
    return head + (words * (room // len(words) + 1))[:room] + b'"}'


def fill(bootstraps: list[str], shape: Shape, configs: dict[str, str] | None = None) -> None:
    """Create the shape's topic on each broker and write the very same batches to all.

    `configs` are settings of the topic on the first broker.
    """
    connections = []
    for index, bootstrap in enumerate(bootstraps):
        create_topic(bootstrap, shape.topic, PARTITIONS, configs=configs if index == 0 else None)
        connections.append(Connection(bootstrap))
    per_batch = BATCH_BYTES // shape.value_bytes
    for index, first in enumerate(range(0, shape.records, per_batch)):
        records = [
            (
                b"card-%06d" % (n % 100_000),
                value(n, shape.value_bytes),
                NOW_MS - shape.records + n,
                (),
            )
            for n in range(first, min(first + per_batch, shape.records))
        ]
        batch = encode_batch(records, codec=shape.codec)
        request = frame_of_batch(shape.topic, index % PARTITIONS, batch)
        for bootstrap, connection in zip(bootstraps, connections, strict=True):
            if error := produce_error(connection.call(request)):
                raise RuntimeError(f"{bootstrap} answered error {error}")
    for connection in connections:
        connection.close()
