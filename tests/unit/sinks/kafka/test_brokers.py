"""What librdkafka says, in our words."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from catchwater.sinks.base import NotAdmitted, SinkUnavailable, Superseded
from catchwater.sinks.kafka_client import Brokers

SAID = "sasl_ssl://k:9092/bootstrap: error:0A000086:SSL routines::certificate verify failed"


@pytest.mark.parametrize("code", [KafkaError._SSL, KafkaError._TRANSPORT])
def test_a_certificate_that_is_not_trusted_is_refused_whenever_the_handshake_fails(
    code: int,
) -> None:
    """One that fails in its first step is told as a failure of the transport."""
    brokers = Brokers({"bootstrap.servers": "k:9092"})
    brokers._note(KafkaError(code, SAID))
    brokers._note(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    with pytest.raises(NotAdmitted, match="certificate verify failed"), brokers.named():
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))


@pytest.mark.parametrize("code", [KafkaError._SSL, KafkaError._TRANSPORT])
def test_a_handshake_that_ends_with_the_broker_is_tried_again(code: int) -> None:
    brokers = Brokers({"bootstrap.servers": "k:9092"})
    brokers._note(KafkaError(code, "sasl_ssl://k:9092/bootstrap: Disconnected"))
    with pytest.raises(SinkUnavailable, match="Disconnected"), brokers.named():
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))


def test_a_fatal_error_is_seen_through_a_delivery_report_that_follows_it() -> None:
    """The client raises it amid its callbacks, and Python then blames the next of them."""
    fenced = KafkaException(KafkaError(KafkaError._FENCED, "fenced by a newer instance"))
    with pytest.raises(Superseded) as caught, Brokers({"bootstrap.servers": "k"}).named():
        raise SystemError("returned a result with an exception set") from fenced
    assert caught.value.__cause__ is fenced


def test_other_errors_of_the_interpreter_are_left_alone() -> None:
    with pytest.raises(SystemError, match="bad"), Brokers({"bootstrap.servers": "k"}).named():
        raise SystemError("bad")
