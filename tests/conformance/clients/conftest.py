"""The records every client writes and reads back: text without tabs or line ends, for all tools."""

import gc
import hashlib
import warnings
from collections.abc import Iterable, Iterator

import pytest

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
RECORDS = 100_000


def expected() -> list[tuple[str, str]]:
    """(key, value) by offset; half of a value compresses well, half of it does not."""
    return [
        (f"k{i % 1000}", f"{i}:{'water' * 8}:{hashlib.md5(str(i).encode()).hexdigest()}")
        for i in range(RECORDS)
    ]


def assert_as_written(read: Iterable[tuple[int, str, str]], wanted: list[tuple[str, str]]) -> None:
    """Every offset once, in order, with the bytes that were written there."""
    count = 0
    for offset, key, value in read:
        assert offset == count
        assert (key, value) == wanted[offset]
        count += 1
    assert count == len(wanted)


@pytest.fixture(scope="module", autouse=True)
def _what_clients_left_is_collected_here() -> Iterator[None]:
    """kafka-python leaves sockets to the collector when it connects anew."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="session")
def wanted() -> list[tuple[str, str]]:
    return expected()


@pytest.fixture(scope="session")
def assert_read():
    return assert_as_written


@pytest.fixture(params=CODECS)
def codec(request: pytest.FixtureRequest) -> str:
    return request.param
