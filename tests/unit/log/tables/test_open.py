"""Where tables lie without a word about it, and with one."""

from pathlib import Path

import pytest

from catchwater.broker.topic_config import refusal
from catchwater.broker_config import BrokerConfig, load_broker_config
from catchwater.config import ConfigError
from catchwater.log.tables.open import TableUnavailable, open_catalog, properties_of
from catchwater.log.tables.settings import PARTITION_BY, TABLE


def test_a_broker_alone_has_its_tables_in_its_folder() -> None:
    assert properties_of(BrokerConfig(log_dirs=Path("/data"))) == {
        "type": "sql",
        "uri": "sqlite:////data/tables.db",
        "warehouse": "file:///data/tables",
    }


@pytest.mark.parametrize(
    ("objects", "warehouse", "server"),
    [
        (
            "s3://bucket/some/prefix?endpoint=http://h:1&region=eu",
            "s3://bucket/some/prefix/tables",
            {"s3.endpoint": "http://h:1", "s3.region": "eu"},
        ),
        ("s3://bucket", "s3://bucket/tables", {}),
        ("file:///shared%20store", "file:///shared%20store/tables", {}),
    ],
)
def test_brokers_that_share_have_them_in_the_same_database(
    objects: str, warehouse: str, server: dict[str, str]
) -> None:
    config = BrokerConfig(
        catchwater_catalog="postgresql://u:p@h:5/db?x=1", catchwater_objects=objects
    )
    assert properties_of(config) == {
        "type": "sql",
        "uri": "postgresql+psycopg://u:p@h:5/db?x=1",
        "warehouse": warehouse,
        **server,
    }


def test_any_other_catalog_is_named_by_its_properties(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        "catchwater.tables.catalog.type=rest\n"
        "catchwater.tables.catalog.uri=https://catalog.example/api\n"
        "catchwater.tables.catalog.s3.endpoint=https://s3.example\n"
    )
    assert properties_of(load_broker_config(file, {})) == {
        "type": "rest",
        "uri": "https://catalog.example/api",
        "s3.endpoint": "https://s3.example",
    }


def test_a_token_of_the_catalog_is_a_secret(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("catchwater.tables.catalog.token=abc\n")
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="read by everybody"):
        load_broker_config(file, {})


def test_a_log_that_encrypts_has_tables_only_where_it_was_said() -> None:
    sealed = BrokerConfig(catchwater_encryption_keys="file:k", catchwater_encryption_local="disk")
    assert properties_of(sealed) is None
    assert "encrypts its objects" in (refusal(TABLE, "lake.t", sealed) or "")
    named = BrokerConfig(
        catchwater_encryption_keys="file:k", catchwater_tables_warehouse="file:///safe"
    )
    assert (properties_of(named) or {})["warehouse"] == "file:///safe"
    assert refusal(TABLE, "lake.t", named) is None


def test_what_cannot_be_a_table_is_refused_by_name() -> None:
    config = BrokerConfig()
    assert refusal(TABLE, "", config) is None
    assert "with its namespace" in (refusal(TABLE, "payments", config) or "")
    assert refusal(PARTITION_BY, "day(timestamp),bucket(16,card)", config) is None
    assert "year, month, day" in (refusal(PARTITION_BY, "week(timestamp)", config) or "")


def test_a_catalog_that_cannot_be_opened_is_named() -> None:
    with pytest.raises(TableUnavailable, match="cannot be opened"):
        open_catalog({"type": "nonsense"})
