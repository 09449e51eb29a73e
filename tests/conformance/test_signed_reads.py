"""Executors read a bucket by a plan's signed URLs alone: no credentials, no other object, in time.

The bucket lies behind a proxy that refuses whatever is not signed, so that nothing is let through
by a server that is kind to tests.
"""

import pickle
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.s3 import CREDENTIALS, make_bucket
from tests.s3_signed import SignedProxy, signed_proxy

from catchwater.clock import SYSTEM
from catchwater.objects.base import StoreRefused
from catchwater.objects.urls import AccessEnded, read_range
from catchwater.replay.control import Control
from catchwater.replay.options import parse_options
from catchwater.replay.plan import OffsetRange, PlanRange
from catchwater.replay.source import BatchReader
from catchwater.wire.arrow import encode_batch
from catchwater.wire.client import Client

CHILD = Path(__file__).with_name("bare_executor.py")
RECORDS = 50
TOPICS = ("mine", "theirs")


@pytest.fixture(scope="module")
def proxy(s3_server) -> Iterator[SignedProxy]:
    with signed_proxy(s3_server) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def broker(make_broker, proxy):
    """A broker that has packed both topics into the bucket; it alone has the credentials."""
    broker = make_broker({
        "catchwater.objects": make_bucket(proxy.endpoint, "signed"),
        "catchwater.pack.interval.ms": "50",
        "catchwater.pack.min.bytes": "1",
        "catchwater.pack.backlog.bytes": "1",
    })  # fmt: skip
    with Client(broker.bootstrap) as client:
        client.create_topics(dict.fromkeys(TOPICS, 1))
        for topic in TOPICS:
            records = [(b"", b"%s-%d" % (topic.encode(), n), SYSTEM.now_ms(), ())
                       for n in range(RECORDS)]  # fmt: skip
            client.produce([((topic, 0), encode_batch(records))])
    deadline = time.monotonic() + 60
    while not all(url_of(broker, topic).startswith("http") for topic in TOPICS):
        assert time.monotonic() < deadline, broker.log()
        time.sleep(0.05)
    return broker


def range_of(broker, topic: str) -> PlanRange:
    (one,) = Control(broker.control_url).plan([OffsetRange(topic, 0, 0, RECORDS)]).ranges
    return one


def url_of(broker, topic: str) -> str:
    return range_of(broker, topic).url


def read_whole(one: PlanRange) -> bool:
    return len(read_range(one.url, one.byte_offset, one.byte_size)) == one.byte_size


def described(broker) -> bytes:
    """What Spark sends to executors: the reader and the partitions that it has planned."""
    options = {
        "kafka.bootstrap.servers": broker.bootstrap,
        "subscribe": "mine",
        "catchwater.read": "direct",
    }
    reader = BatchReader(parse_options(options))
    return pickle.dumps((reader, reader.partitions()))


def executed(description: bytes, home: Path) -> list[tuple[int, bytes]]:
    """What the bare process reads."""
    home.mkdir()
    done = subprocess.run(
        [sys.executable, str(CHILD)], input=description, env={"HOME": str(home)},
        capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    rows, environment, modules = pickle.loads(done.stdout)
    assert not [name for name in environment if "AWS" in name.upper()]
    assert not {"obstore", "boto3", "botocore"} & {name.partition(".")[0] for name in modules}
    return list(zip(rows["offset"].to_pylist(), rows["value"].to_pylist(), strict=True))


def signed_reads(proxy: SignedProxy) -> list[str]:
    """What became of the requests by signed URL; the broker's own are signed otherwise."""
    return [fault for method, path, fault in proxy.seen if method == "GET" and "X-Amz-Sig" in path]


EXPECTED = [(n, b"mine-%d" % n) for n in range(RECORDS)]


def test_an_executor_without_credentials_reads_by_the_plan(broker, proxy, tmp_path) -> None:
    description = described(broker)
    proxy.seen.clear()
    assert executed(description, tmp_path / "home") == EXPECTED
    assert signed_reads(proxy) == [""], "one object, let through"


def test_a_task_s_description_holds_no_secret(broker) -> None:
    description = described(broker)
    assert b"X-Amz-Signature=" in description, "it has the signed URL"
    assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"].encode() not in description
    assert b"AWS_" not in description


@pytest.mark.parametrize("change", ["another object", "unsigned", "longer"])
def test_a_signed_url_is_good_for_nothing_else(broker, change) -> None:
    mine, theirs = range_of(broker, "mine"), range_of(broker, "theirs")
    url, other = mine.url, theirs.url
    assert read_whole(mine) and read_whole(theirs)
    bare, _, query = url.partition("?")
    changed = {
        "another object": urlsplit(url)._replace(path=urlsplit(other).path).geturl(),
        "unsigned": bare,
        "longer": f"{bare}?{query.replace('X-Amz-Expires=900', 'X-Amz-Expires=604800')}",
    }[change]
    assert changed != url
    with pytest.raises(StoreRefused, match="answered 403") as refused:
        read_range(changed, mine.byte_offset, mine.byte_size)
    assert "Signature" not in str(refused.value)


@pytest.mark.parametrize("part", [(0, 16), (-1, 1), (0, 1), (1, -1), (0, -1)])
def test_a_url_gives_the_bytes_that_it_was_signed_for_and_no_other(broker, part) -> None:
    """Chunks hold batches of many topics: their URLs would open those of others, too."""
    mine = range_of(broker, "mine")
    offset = mine.byte_offset + part[0]
    size = part[1] if part[1] > 1 else mine.byte_size + part[1]
    with pytest.raises(AccessEnded, match="answered 403"):
        read_range(mine.url, offset, size)
    assert read_whole(mine)


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_a_signed_url_changes_nothing(broker, method) -> None:
    mine = range_of(broker, "mine")
    url = mine.url
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(url, b"", method=method), timeout=60)
    refused.value.close()
    assert refused.value.code == 403
    assert read_whole(mine)


def test_a_url_that_has_ended_is_refused_and_a_task_asks_for_another(
    broker, proxy, tmp_path
) -> None:
    description, mine = described(broker), range_of(broker, "mine")
    ended_at = proxy.end_all()
    with pytest.raises(AccessEnded, match="answered 403") as refused:
        read_whole(mine)
    assert "ask for the plan again" in (refused.value.hint or "")
    while datetime.now(UTC).replace(microsecond=0) <= ended_at:
        time.sleep(0.01)  # the signature's time has whole seconds
    proxy.seen.clear()
    assert executed(description, tmp_path / "home") == EXPECTED
    assert signed_reads(proxy) == ["403", ""]
