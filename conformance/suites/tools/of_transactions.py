"""`kafka-transactions`, beside a producer whose transaction is open."""

import contextlib
import logging
import time
from collections.abc import Iterator

from confluent_kafka import KafkaException, Producer

from conformance.suites.tools.cases import case, topic
from conformance.suites.tools.jvm import Tools, Wrong

WAIT_S = 30.0
PAUSE_S = 0.2
_NONE_OPEN = r"^\d+\s+\d+\s+-?\d+\s+0\s+\d+\s+None\s*$"
"""The only producer of a partition, without a transaction."""

_UNHEARD = logging.getLogger("librdkafka")
_UNHEARD.addHandler(logging.NullHandler())
_UNHEARD.propagate = False


@contextlib.contextmanager
def _open_transaction(tools: Tools, name: str) -> Iterator[Producer]:
    """One record in a topic of that name, by a transactional id of that name; left open."""
    topic(tools, name)
    settings = {"bootstrap.servers": tools.bootstrap, "transactional.id": name}
    producer = Producer(settings, logger=_UNHEARD)
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce(name, b"value", partition=0)
    producer.flush(WAIT_S)
    yield producer


def _comes_to_tell(tools: Tools, pattern: str, *arguments: str) -> None:
    """A broker may answer the producer before the end of its transaction shows. Raises `Wrong`."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            tools("transactions", *arguments).tells(pattern)
            return
        except Wrong:
            if time.monotonic() > deadline:
                raise
        time.sleep(PAUSE_S)


@case
def transactions_list(tools: Tools, name: str) -> None:
    with _open_transaction(tools, name) as producer:
        line = rf"^{name}\s+\d+\s+\d+\s+Ongoing\s*$"
        tools("transactions", "list").tells(line)
        tools("transactions", "list", "--transactional-id-pattern", f"{name[:5]}.*").tells(line)
        tools("transactions", "list", "--duration-filter", "600000").tells().lacks(name)
        producer.commit_transaction(WAIT_S)
        _comes_to_tell(tools, rf"^{name}\s+\d+\s+\d+\s+CompleteCommit\s*$", "list")


@case
def transactions_describe(tools: Tools, name: str) -> None:
    with _open_transaction(tools, name) as producer:
        describe = ["transactions", "describe", "--transactional-id"]
        ongoing = rf"\s{name}\s+\d+\s+0\s+Ongoing\s+60000\s+.*\s{name}-0\s*$"
        tools(*describe, name).tells(ongoing)
        producer.abort_transaction(WAIT_S)
        ended = rf"\s{name}\s+\d+\s+\d+\s+CompleteAbort\s+60000\s"
        _comes_to_tell(tools, ended, *describe[1:], name)
        tools(*describe, f"{name}-none").refuses("the ID could not be found")


@case
def transactions_describe_producers(tools: Tools, name: str) -> None:
    describe = ["transactions", "describe-producers", "--topic", name, "--partition", "0"]
    with _open_transaction(tools, name) as producer:
        tools(*describe).tells(r"^\d+\s+0\s+-?\d+\s+0\s+\d+\s+0\s*$")
        producer.commit_transaction(WAIT_S)
        _comes_to_tell(tools, _NONE_OPEN, *describe[1:])


@case
def transactions_find_hanging(tools: Tools, name: str) -> None:
    with _open_transaction(tools, name) as producer:
        # The producer's own coordinator knows the transaction, so it does not hang.
        hanging = ["transactions", "find-hanging", "--broker-id", "1"]
        tools(*hanging, "--max-transaction-timeout", "15").tells("^Topic\\s+Partition").lacks(name)
        producer.commit_transaction(WAIT_S)


@case
def transactions_abort(tools: Tools, name: str) -> None:
    with _open_transaction(tools, name) as producer:
        at = ["--topic", name, "--partition", "0", "--start-offset", "0"]
        tools("transactions", "abort", *at).tells()
        _comes_to_tell(tools, _NONE_OPEN, "describe-producers", *at[:4])
        with contextlib.suppress(KafkaException):
            producer.abort_transaction(WAIT_S)


@case
def transactions_terminate(tools: Tools, name: str) -> None:
    with _open_transaction(tools, name) as producer:
        tools("transactions", "forceTerminateTransaction", "--transactionalId", name).tells()
        describe = ["describe", "--transactional-id", name]
        _comes_to_tell(tools, "CompleteAbort|Empty", *describe)
        try:
            producer.commit_transaction(WAIT_S)
        except KafkaException:
            return
        raise Wrong("the producer committed what had been terminated")
