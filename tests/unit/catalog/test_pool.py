"""What is shown of a URL, and which failures are tried again."""

import psycopg
import pytest

from catchwater.catalog.server import Pool, masked, may_be_retried
from catchwater.clock import ManualClock
from catchwater.config import ConfigError


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@db.example:5433/log", "postgresql://db.example:5433/log"),
        ("postgresql://db.example/log?password=secret", "postgresql://db.example/log"),
        ("postgresql://me:secret@db.example:port/log", "postgresql://…"),
        ("host=db password=secret", "postgresql://…"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert masked(url) == shown


def test_a_failure_is_described_without_the_password() -> None:
    pool = Pool("postgresql://me:se%20cret@db.example/log", 1, ManualClock())
    error = psycopg.OperationalError("password 'se cret'\n  was wrong")
    assert pool.describe(error) == "password '***' was wrong"


def test_a_url_that_cannot_be_read_is_refused_without_its_secrets() -> None:
    with pytest.raises(ConfigError) as caught:
        Pool("postgresql://me:secret@db/log?unknown=1", 1, ManualClock())
    assert "secret" not in str(caught.value) + str(caught.value.hint)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (psycopg.errors.SerializationFailure(), True),
        (psycopg.errors.DeadlockDetected(), True),
        (psycopg.errors.AdminShutdown(), True),
        (psycopg.errors.CannotConnectNow(), True),
        (psycopg.errors.QueryCanceled(), True),
        (psycopg.errors.TooManyConnections(), True),
        (psycopg.OperationalError("server closed the connection unexpectedly"), True),
        (psycopg.errors.UniqueViolation(), False),
        (psycopg.errors.InsufficientPrivilege(), False),
        (psycopg.errors.UndefinedTable(), False),
        (psycopg.DataError(), False),
    ],
)
def test_only_what_may_do_better_is_tried_again(error: psycopg.Error, again: bool) -> None:
    assert may_be_retried(error) is again
