"""kcat, started once a call. What it cannot do (topics, groups, settings) it is not asked for.

kcat has no call that creates a topic: writing to one that does not exist creates it.
"""

import shutil
import subprocess
import time
from functools import partial

from conformance.clients.script import (
    BOOTSTRAP,
    PREFIX,
    SESSION_S,
    Step,
    for_librdkafka,
    main,
    same,
    until,
)

SECURITY = [part for pair in for_librdkafka().items() for part in ("-X", "=".join(pair))]
COMMAND = [shutil.which("kcat") or "kcat", "-b", BOOTSTRAP, *SECURITY]
LINES = [f"k{i % 7}\t{i}:{'water' * 8}" for i in range(100)]


def kcat(*arguments: str, text: str = "", timeout_s: float = 40.0) -> str:
    """What it prints. Raises `AssertionError` with its last line if it fails."""
    done = subprocess.run(
        [*COMMAND, *arguments],
        input=text.encode(), capture_output=True, timeout=timeout_s, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise AssertionError(f"kcat: {done.stderr.decode().strip().splitlines()[-1:]}")
    return done.stdout.decode()


def topic(name: str) -> str:
    made = f"{PREFIX}-{name}"
    kcat("-L", "-t", made)  # asking for it creates it
    until(lambda: "with 1 partitions" in kcat("-L", "-t", made), f"the metadata of {made}")
    return made


def write(name: str, lines: list[str] = LINES, *options: str) -> None:
    kcat("-P", "-t", name, "-K", "\t", *options, text="".join(f"{line}\n" for line in lines))


def read(name: str, *options: str, form: str = r"%k\t%s\n", start: str = "beginning") -> list[str]:
    out = kcat("-C", "-t", name, "-p", "0", "-o", start, "-e", "-q", "-f", form, *options)
    return out.splitlines()


def metadata() -> None:
    name = topic("metadata")
    out = kcat("-L", "-t", name)
    same("1 brokers:" in out, True, "one broker")
    same("partition 0, leader" in out, True, "a leader")


def written_is_read(name: str, *options: str) -> None:
    made = topic(name)
    write(made, LINES, *options)
    same(read(made), LINES, "records")


def idempotent() -> None:
    name = topic("idempotent")
    write(name, LINES, "-X", "enable.idempotence=true")
    same(read(name, form=r"%o\n"), [str(i) for i in range(100)], "offsets")


def headers() -> None:
    name = topic("headers")
    write(name, ["k\tv"], "-H", "a=1", "-H", "a=2", "-H", "empty=")
    same(read(name, form=r"%h\n"), ["a=1,a=2,empty="], "headers")


def null_key_value() -> None:
    name = topic("nulls")
    write(name, ["\tv", "k\t"], "-Z")  # -Z: what is empty is written as null
    same(read(name, form=r"%K %S\n"), ["-1 1", "1 -1"], "sizes of key and value")


def large_record() -> None:
    name = topic("large")
    value = "0123456789" * 90_000
    write(name, [f"k\t{value}"])
    same(read(name, form=r"%s\n") == [value], True, "the record is read back")


def consume_earliest() -> None:
    name = topic("earliest")
    write(name)
    same(read(name), LINES, "records")


def consume_latest() -> None:
    name = topic("latest")
    write(name)
    same(read(name, start="end"), [], "records behind the end")
    same(len(read(name, start="-10")), 10, "of the last ten")


def consume_timestamp() -> None:
    name = topic("timestamp")
    write(name, LINES[:10])
    cut_ms = a_time_between()
    write(name, LINES[10:20])
    found = read(name, start=f"s@{cut_ms}", form=r"%o\n")
    same(found, [str(i) for i in range(10, 20)], "offsets since the time")
    same(read(name, start=f"s@{a_time_between()}"), [], "records since now")


def a_time_between() -> int:
    """A time in ms that is later than every record written before, earlier than all to come."""
    between_ms = int(time.time() * 1000) + 1
    until(lambda: time.time() * 1000 >= between_ms + 1, "the next millisecond")
    return between_ms


def group(name: str, count: int, *options: str) -> list[str]:
    """So many records read as a member of a group; its end commits what it has read."""
    made = f"{PREFIX}-{name}"
    arguments = ["-c", str(count), "-q", "-f", r"%o\n", "-X", "auto.offset.reset=earliest"]
    return kcat("-G", made, made, *arguments, *options).split()


def long_session() -> None:
    """Call after call: kcat ends when its connection does, and its librdkafka logs in once."""
    name = topic("session")
    numbers: list[str] = []
    until_s = time.monotonic() + SESSION_S
    while time.monotonic() < until_s:
        new = [str(number) for number in range(len(numbers), len(numbers) + 20)]
        write(name, [f"k\t{each}" for each in new], "-p", "0", "-X", "enable.idempotence=true")
        at = str(len(numbers))
        same(read(name, form=r"%s\n", start=at), new, "values")
        numbers += new
    same(read(name, form=r"%s\n"), numbers, "values")


def group_one() -> None:
    write(topic("one"))
    same(group("one", 100), [str(i) for i in range(100)], "offsets")


def group_resume() -> None:
    write(topic("resume"))
    same(group("resume", 40), [str(i) for i in range(40)], "offsets")
    same(group("resume", 60), [str(i) for i in range(40, 100)], "offsets")


def txn_commit() -> None:
    name = topic("commit")
    write(name, LINES, "-X", f"transactional.id={name}")
    same(read(name, "-X", "isolation.level=read_committed"), LINES, "records")


STEPS: dict[str, Step] = {
    "metadata": metadata,
    **{
        f"produce-{codec}": partial(written_is_read, f"codec-{codec}", "-z", codec)
        for codec in ("none", "gzip", "snappy", "lz4", "zstd")
    },
    **{
        f"acks-{number}": partial(written_is_read, f"acks-{number}", "-X", f"acks={number}")
        for number in ("all", "1", "0")
    },
    "idempotent": idempotent,
    "headers": headers,
    "null-key-value": null_key_value,
    "large-record": large_record,
    "consume-earliest": consume_earliest,
    "consume-latest": consume_latest,
    "consume-timestamp": consume_timestamp,
    "long-session": long_session,
    "group-one": group_one,
    "group-resume": group_resume,
    "txn-commit": txn_commit,
}

if __name__ == "__main__":
    main(STEPS)
