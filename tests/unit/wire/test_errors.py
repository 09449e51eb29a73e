"""Error codes: the numbers are Kafka's, as kio took them from Kafka's own source."""

from kio.schema.errors import ErrorCode as KioErrorCode

from catchwater.wire.errors import ErrorCode


def test_every_code_has_kafkas_name_and_number() -> None:
    assert {code.name: code.value for code in ErrorCode} == {
        code.name.upper(): int(code) for code in KioErrorCode
    }


def test_every_code_is_retriable_exactly_when_kafkas_clients_retry_it() -> None:
    assert [code.is_retriable for code in ErrorCode] == [code.retriable for code in KioErrorCode]


def test_a_refusal_is_definite_and_a_silence_is_not() -> None:
    assert ErrorCode.MESSAGE_TOO_LARGE.is_definite
    assert ErrorCode.NONE.is_definite
    assert not ErrorCode.REQUEST_TIMED_OUT.is_definite
    assert not ErrorCode.NETWORK_EXCEPTION.is_definite
    assert not ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND.is_definite
