"""Secrets of a broker: where they may stand and come from, and that they are not shown."""

import os
from pathlib import Path
from typing import Any

import pytest

from catchwater.broker_config import load_broker_config, masked
from catchwater.config import SHOWN, ConfigError, is_secret

SECRET = "s3cr3t-marker"
URL = "postgresql://catchwater:{}@db.example/catchwater"


def written(folder: Path, text: str, name: str = "server.properties", mode: int = 0o600) -> Path:
    path = folder / name
    path.write_text(text)
    path.chmod(mode)
    return path


def file_with(folder: Path, password: str, mode: int = 0o600, more: str = "") -> Path:
    url = URL.format(password)
    text = f"catchwater.catalog={url}\ncatchwater.objects=s3://bucket/x\n{more}"
    return written(folder, text, mode=mode)


@pytest.mark.parametrize(
    "reference", ["${env:DB_PASSWORD}", "${file:db.properties:password}", "${directory:.:db}"]
)
def test_a_broker_s_file_may_refer_to_a_secret(tmp_path: Path, reference: str) -> None:
    written(tmp_path, f"password={SECRET}\n", "db.properties")
    written(tmp_path, f"{SECRET}\n", "db")
    path = file_with(tmp_path, reference, mode=0o644)
    found = load_broker_config(path, {"DB_PASSWORD": SECRET})
    assert found.catchwater_catalog == URL.format(SECRET)


def test_a_file_elsewhere_is_not_read(tmp_path: Path) -> None:
    other = tmp_path / "other"
    own = tmp_path / "own"
    other.mkdir()
    own.mkdir()
    written(other, f"password={SECRET}\n", "db.properties")
    for name in (f"{other}/db.properties", "../other/db.properties", "link"):
        (own / "link").unlink(missing_ok=True)
        os.symlink(other / "db.properties", own / "link")
        path = file_with(own, f"${{file:{name}:password}}")
        with pytest.raises(ConfigError, match="lies in no folder that references may name"):
            load_broker_config(path, {})
    path = file_with(
        own,
        f"${{file:{other}/db.properties:password}}",
        more="catchwater.secret.folders=../other\n",
    )
    assert SECRET in load_broker_config(path, {}).catchwater_catalog


@pytest.mark.parametrize("what", ["the file itself", "the file it names"])
def test_a_secret_that_everybody_may_read_stops_the_start(tmp_path: Path, what: str) -> None:
    if what == "the file itself":
        path = file_with(tmp_path, SECRET, mode=0o644)
    else:
        written(tmp_path, f"password={SECRET}\n", "db.properties", mode=0o644)
        path = file_with(tmp_path, "${file:db.properties:password}")
    with pytest.raises(ConfigError, match="can be read by everybody") as refused:
        load_broker_config(path, {})
    assert "chmod 600" in str(refused.value.hint) and SECRET not in str(refused.value)
    load_broker_config(file_with(tmp_path, SECRET, mode=0o640), {})


def test_without_a_secret_everybody_may_read_the_file(tmp_path: Path) -> None:
    load_broker_config(written(tmp_path, "num.partitions=3\n", mode=0o644), {})


def test_no_secret_stands_on_the_command_line() -> None:
    with pytest.raises(
        ConfigError, match="everybody on this machine sees a command line"
    ) as refused:
        load_broker_config(None, {}, {"catchwater.catalog": URL.format(SECRET)})
    assert SECRET not in f"{refused.value} {refused.value.hint}"
    assert "CATCHWATER_BROKER__CATCHWATER_CATALOG" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("${env:NONE}", "names no variable"),
        ("${file:none:x}", "cannot be read"),
        ("${file:db.properties:x}", "there is no 'x'"),
        ("${vault:a:b}", "names a provider that does not exist"),
    ],
)
def test_a_reference_to_nothing_names_its_line(
    tmp_path: Path, reference: str, message: str
) -> None:
    written(tmp_path, f"password={SECRET}\n", "db.properties")
    with pytest.raises(ConfigError, match=message) as refused:
        load_broker_config(file_with(tmp_path, reference), {})
    assert "line 1: catchwater.catalog" in str(refused.value)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("catchwater.catalog", URL.format("x"), True),
        ("catchwater.catalog", "postgresql://catchwater@db/x", False),
        ("ssl.key.password", "x", True),
        ("catchwater.encryption.key", "x", True),
        ("sasl.jaas.config", 'Module required password="x";', True),
        ("listener.name.a.plain.sasl.jaas.config", 'Module required user_a="x";', True),
        ("sasl.jaas.config", "ScramLoginModule required;", False),
        ("num.partitions", 3, False),
        ("log.dirs", "/data/password", False),
    ],
)
def test_what_is_a_secret_is_masked(key: str, value: Any, expected: bool) -> None:
    assert is_secret(key, value) == expected
    assert masked(key, value) == (SHOWN if expected else value)


def test_no_error_of_the_file_quotes_a_secret(tmp_path: Path) -> None:
    for text in (f"ssl.key.password {SECRET}\n", f"ssl.key.pasword={SECRET}\n"):
        with pytest.raises(ConfigError) as refused:
            load_broker_config(written(tmp_path, text), {})
        assert SECRET not in f"{refused.value} {refused.value.hint}"
