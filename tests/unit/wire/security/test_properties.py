"""Java's properties files, and the references by which a secret stands somewhere else."""

from pathlib import Path

import pytest

from catchwater.config import ConfigError
from catchwater.wire.security.settings import read_properties, resolve

FILE = r"""
# a remark
! and another
security.protocol=SASL_SSL
  sasl.mechanism : SCRAM-SHA-512
sasl.jaas.config=ScramLoginModule required \
    username="reader" \
    password="a\\"b=c";
ssl.key.password s\u00e9same\
! goes on
empty=
twice=1
twice=2
"""


def test_a_properties_file_is_read_as_java_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text(FILE)
    assert read_properties(path) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": 'ScramLoginModule required username="reader" password="a\\"b=c";',
        "ssl.key.password": "sésame! goes on",
        "empty": "",
        "twice": "2",
    }
    with pytest.raises(ConfigError, match=r"absent cannot be read"):
        read_properties(tmp_path / "absent")


def test_a_secret_may_stand_in_the_environment_in_a_file_or_be_one(tmp_path: Path) -> None:
    (tmp_path / "secrets.properties").write_text("password=of: the file\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "password").write_text("of a directory\n")
    environment = {"PASSWORD": "of the environment"}
    for reference, value in {
        "${env:PASSWORD}": "of the environment",
        "${file:secrets.properties:password}": "of: the file",
        "${directory:run:password}": "of a directory",
        'x password="${env:PASSWORD}";': 'x password="of the environment";',
        "pa$$word${": "pa$$word${",
    }.items():
        assert resolve(reference, environment, tmp_path) == value


@pytest.mark.parametrize(
    ("reference", "sentence"),
    [
        ("${env:ABSENT}", r"\$\{env:ABSENT\} names no variable"),
        ("${file:secrets.properties:absent}", "there is no 'absent' in .*secrets.properties"),
        ("${file:absent.properties:key}", "absent.properties cannot be read"),
        ("${directory:.:absent}", "absent cannot be read"),
        ("${vault:a:b}", "a provider that does not exist"),
    ],
)
def test_a_reference_to_nothing_is_named_and_no_secret_shown(
    reference: str, sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "secrets.properties").write_text("password=s3cret\n")
    with pytest.raises(ConfigError, match=sentence) as caught:
        resolve(reference, {"PASSWORD": "s3cret"}, tmp_path)
    assert "s3cret" not in f"{caught.value} {caught.value.hint}"
