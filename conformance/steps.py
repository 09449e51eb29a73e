"""The steps that every client takes, in order: a name, and what must hold for it to pass.

A client's program implements a step as its library does such a thing by default, with topics and
groups of its own (named after the prefix it is given), and reads back what it wrote.
"""

STEPS = {
    "create-topic": "three partitions are made; a second time the topic is said to exist",
    "metadata": "brokers are known, and the topic has three partitions with a leader each",
    "produce-none": "100 records are read back as written",
    "produce-gzip": "the same, compressed with gzip",
    "produce-snappy": "the same, compressed with snappy",
    "produce-lz4": "the same, compressed with lz4",
    "produce-zstd": "the same, compressed with zstd",
    "acks-all": "100 records acknowledged by all replicas",
    "acks-1": "100 records acknowledged by the leader",
    "acks-0": "100 records that nobody acknowledges arrive",
    "idempotent": "an idempotent producer's 100 records get consecutive offsets",
    "headers": "headers come back in order, doubled names and null values included",
    "null-key-value": "a null key and a null value stay null, empty ones stay empty",
    "large-record": "a record of 900 KB is read back",
    "consume-earliest": "a new reader that starts at the earliest offset gets all",
    "consume-latest": "a new reader that starts at the latest offset gets only what follows",
    "consume-timestamp": "the first offset at or after a time is found, none behind the last",
    "long-session": "for 3 s, or 25 s where logins end after 10, records are written and meanwhile "
    "read: each once, in order",
    "group-one": "a group of one gets all partitions and all records",
    "group-resume": "the next member goes on at the committed offset",
    "group-eager": "a second member takes half of the partitions (eager assignor), and gives back",
    "group-cooperative": "the same with the cooperative-sticky assignor",
    "group-static": "a static member that restarts within its session gets its partitions back",
    "group-consumer": "two members share partitions under group.protocol=consumer (KIP-848)",
    "txn-commit": "records of a committed transaction are read with read_committed",
    "txn-abort": "records of an aborted one are not, but with read_uncommitted",
    "txn-isolation": "read_committed waits before an open transaction and goes on after its end",
    "txn-offsets": "offsets sent to a transaction are committed with it, and not if it aborts",
    "txn-fencing": "a producer is fenced once another took over its transactional id",
    "delete-topic": "a deleted topic is gone from the list of topics",
    "create-partitions": "a topic grows from one partition to three",
    "configs": "a topic's retention.ms is altered and described",
    "delete-records": "the log begins at the offset before which records were deleted",
    "list-offsets": "earliest, latest and maximal timestamp give the offsets expected",
    "groups": "groups are listed and described; an empty one is deleted and then gone",
    "delete-group-offsets": "a group's committed offset of one partition is deleted",
}

TIMEOUT_S = 60.0
"""How long a step may take before it has failed; the slowest waits for two rebalances."""
