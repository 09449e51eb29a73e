"""Events become idempotent batches, partitioned by key."""

from collections import defaultdict
from collections.abc import Sequence

from catchwater.drill.feeder import Event, Feeder
from catchwater.wire.batch import BatchHeader, read_header


class Client:
    """Keeps the batches it is given."""

    def __init__(self) -> None:
        self.rounds: list[Sequence[tuple[tuple[str, int], bytes]]] = []

    def init_producer_id(self) -> tuple[int, int]:
        return 42, 3

    def produce(self, batches: Sequence[tuple[tuple[str, int], bytes]]) -> list[int]:
        self.rounds.append(batches)
        return [0] * len(batches)

    def headers(self) -> dict[int, list[BatchHeader]]:
        headers = defaultdict(list)
        for batches in self.rounds:
            for (_, partition), data in batches:
                headers[partition].append(read_header(memoryview(data)))
        return headers


def events(count: int) -> list[Event]:
    return [Event(f"k{n % 50}".encode(), b"{}", 1_000 + n) for n in range(count)]


def test_sequences_follow_each_other_in_every_partition() -> None:
    client = Client()
    feeder = Feeder(client, "t", partitions=4, round_events=100)
    feeder.feed(iter(events(1_050)), 1_050)
    assert feeder.acknowledged == 1_050
    assert len(client.rounds) == 11
    for headers in client.headers().values():
        expected = 0
        for header in headers:
            assert (header.producer_id, header.producer_epoch) == (42, 3)
            assert header.base_sequence == expected
            expected += header.record_count


def test_feeding_in_parts_goes_on_where_it_stopped() -> None:
    client = Client()
    feeder = Feeder(client, "t", partitions=1, round_events=100)
    stream = iter(events(300))
    feeder.feed(stream, 130)
    feeder.feed(stream, 1_000)
    (headers,) = client.headers().values()
    assert [header.base_sequence for header in headers] == [0, 100, 130, 230]
    assert feeder.acknowledged == 300


def test_a_key_always_goes_to_the_same_partition() -> None:
    client = Client()
    feeder = Feeder(client, "t", partitions=4, round_events=10)
    same = [Event(b"card", b"{}", n) for n in range(40)]
    feeder.feed(iter(same), 40)
    assert len(client.headers()) == 1
