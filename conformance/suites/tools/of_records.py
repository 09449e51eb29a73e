"""Records and offsets: console producer and consumer, get-offsets, delete-records, perf tests."""

from conformance.suites.tools.cases import case, read, records, topic, written
from conformance.suites.tools.jvm import Tools, Wrong


@case
def console_plain(tools: Tools, name: str) -> None:
    topic(tools, name)
    records(tools, name, 100)
    got = read(tools, name, "--from-beginning", "--max-messages", "100")
    if got != [f"v{n}" for n in range(100)]:
        raise Wrong(f"read {len(got)} records, of which the first are {got[:5]}")


@case
def console_keys_and_headers(tools: Tools, name: str) -> None:
    topic(tools, name)
    reader = ["parse.key=true", "parse.headers=true", "null.marker=NULL"]
    arguments = [word for each in reader for word in ("--reader-property", each)]
    lines = "h:1\tk1\tv1\nh:2,i:3\tk2\tNULL\n"
    tools("console-producer", "--topic", name, *arguments, stdin=lines).tells()
    shown = ["print.key=true", "print.headers=true", "print.offset=true", "print.timestamp=true"]
    arguments = [word for each in shown for word in ("--formatter-property", each)]
    got = "\n".join(read(tools, name, "--from-beginning", "--max-messages", "2", *arguments))
    for pattern in ("Offset:0\th:1\tk1\tv1", "Offset:1\th:2,i:3\tk2\tnull", "CreateTime:1"):
        if pattern not in got:
            raise Wrong(f"no {pattern!r} in {got!r}")


@case
def console_codecs(tools: Tools, name: str) -> None:
    topic(tools, name)
    codecs = ["none", "gzip", "snappy", "lz4", "zstd"]
    for codec in codecs:
        produce = ["console-producer", "--topic", name, "--compression-codec", codec]
        tools(*produce, stdin=f"{codec}\n").tells()
    got = read(tools, name, "--from-beginning", "--max-messages", "5")
    if got != codecs:
        raise Wrong(f"read {got}")


@case
def console_acks(tools: Tools, name: str) -> None:
    topic(tools, name)
    for acks in ("0", "1", "-1"):
        produce = ["console-producer", "--topic", name, "--command-property", f"acks={acks}"]
        idempotence = ["--command-property", "enable.idempotence=false"]
        tools(*produce, *idempotence, stdin=f"{acks}\n").tells()
    got = read(tools, name, "--from-beginning", "--max-messages", "3")
    if sorted(got) != ["-1", "0", "1"]:
        raise Wrong(f"read {got}")


@case
def console_from_an_offset(tools: Tools, name: str) -> None:
    topic(tools, name, 2)
    records(tools, name, 10)
    offsets = tools("get-offsets", "--topic", name).tells(f"^{name}:[01]:10$").out
    partition = "0" if f"{name}:0:10" in offsets else "1"
    got = read(tools, name, "--partition", partition, "--offset", "7", "--max-messages", "3")
    if got != ["v7", "v8", "v9"]:
        raise Wrong(f"read {got}")


@case
def console_only_committed(tools: Tools, name: str) -> None:
    topic(tools, name)
    records(tools, name, 3)
    committed = ["--isolation-level", "read_committed", "--max-messages", "3"]
    got = read(tools, name, "--from-beginning", *committed)
    if got != ["v0", "v1", "v2"]:
        raise Wrong(f"read {got}")


@case
def get_offsets(tools: Tools, name: str) -> None:
    topic(tools, name, 2)
    records(tools, name, 10)
    ends = tools("get-offsets", "--topic", name).tells(f"^{name}:[01]:0$", f"^{name}:[01]:10$")
    used = "0" if f"{name}:0:10" in ends.out else "1"
    one = ["get-offsets", "--topic-partitions", f"{name}:{used}", "--time"]
    tools(*one, "latest").tells(f"^{name}:{used}:10$")
    tools(*one, "earliest").tells(f"^{name}:{used}:0$")
    tools(*one, "max-timestamp").tells(rf"^{name}:{used}:\d$")
    tools(*one, "earliest-local").tells(f"^{name}:{used}:0$")
    tools(*one, "1000").tells(f"^{name}:{used}:0$")
    tools("get-offsets", "--topic", f"{name}-none").refuses("[Cc]ould not match")


@case
def delete_records(tools: Tools, name: str) -> None:
    topic(tools, name)
    records(tools, name, 10)
    before = {"partitions": [{"topic": name, "partition": 0, "offset": 4}], "version": 1}
    path = written(tools, name, before)
    deleted = tools("delete-records", "--offset-json-file", path)
    deleted.tells(rf"partition: {name}-0\s+low_watermark: 4")
    tools("get-offsets", "--topic", name, "--time", "earliest").tells(f"^{name}:0:4$")
    got = read(tools, name, "--from-beginning", "--max-messages", "6")
    if got != [f"v{n}" for n in range(4, 10)]:
        raise Wrong(f"read {got}")
    before["partitions"] = [{"topic": name, "partition": 0, "offset": 99}]
    beyond = tools("delete-records", "--offset-json-file", written(tools, name, before))
    beyond.complains("OffsetOutOfRangeException")


@case
def producer_perf_test(tools: Tools, name: str) -> None:
    topic(tools, name)
    sizes = ["--num-records", "5000", "--record-size", "100", "--throughput", "-1"]
    to = ["--topic", name, *sizes, "--producer-props", f"bootstrap.servers={tools.bootstrap}"]
    tools.bare("producer-perf-test", *to).tells("^5000 records sent, .* 99.9th")
    tools("get-offsets", "--topic", name).tells(f"^{name}:0:5000$")


@case
def producer_perf_test_in_transactions(tools: Tools, name: str) -> None:
    topic(tools, name)
    sizes = ["--num-records", "5000", "--record-size", "100", "--throughput", "-1"]
    to = ["--topic", name, *sizes, "--producer-props", f"bootstrap.servers={tools.bootstrap}"]
    ids = ["--transactional-id", name, "--transaction-duration-ms", "50"]
    tools.bare("producer-perf-test", *to, *ids).tells("^5000 records sent, .* 99.9th")
    got = read(tools, name, "--from-beginning", "--isolation-level", "read_committed",
               "--max-messages", "5000")  # fmt: skip
    if len(got) != 5000:
        raise Wrong(f"read {len(got)} committed records")
    tools("transactions", "describe", "--transactional-id", name).tells("Commit")


@case
def consumer_perf_test(tools: Tools, name: str) -> None:
    topic(tools, name)
    records(tools, name, 1000)
    asked = ["--topic", name, "--num-records", "1000", "--timeout", "20000"]
    said = tools("consumer-perf-test", *asked).tells("^start.time, ")
    if [cell.strip() for cell in said.out.splitlines()[-1].split(",")][4] != "1000":
        raise Wrong(f"consumer-perf-test says {said.out!r}")


@case
def e2e_latency(tools: Tools, name: str) -> None:
    topic(tools, name)
    asked = [
        "--topic",
        name,
        "--num-records",
        "20",
        "--producer-acks",
        "all",
        "--record-size",
        "50",
    ]
    tools("e2e-latency", *asked).tells("^Avg latency: ", "^Percentiles: ")
    tools("get-offsets", "--topic", name).tells(f"^{name}:0:20$")
