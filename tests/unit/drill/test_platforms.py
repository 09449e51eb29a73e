"""What a drill did not start is broken only where that was allowed, and production asks twice."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from catchwater.drill import platforms
from catchwater.drill.platforms import (
    ApacheKafka,
    BadPlatform,
    ByCommands,
    CommandFailed,
    NotPermitted,
    OwnLog,
    permitted,
    read_platform,
)

GOOD = 'name = "staging"\nbootstrap = "k:9092"\nkill = ["k", "-9"]\nstart = ["s"]\n'


def foreign(name: str = "staging", bootstrap: str = "k:9092") -> ByCommands:
    return ByCommands(name, bootstrap, ["true"], ["true"])


def test_a_platforms_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "platform.toml"
    path.write_text(GOOD)
    platform = read_platform(path)
    assert (platform.name, platform.bootstrap) == ("staging", "k:9092")
    assert platform.commands == {"kill": ["k", "-9"], "start": ["s"]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace("kill", "kil"), "no key 'kil'"),
        (GOOD.replace('["s"]', '"s"'), "start must be a list of words"),
        (GOOD.replace('["s"]', "[1]"), "start must be a list of words"),
        (GOOD.replace('"staging"', "3"), "name must be a text"),
        (GOOD.replace('start = ["s"]\n', ""), "start is missing"),
        ("name", "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "platform.toml"
    path.write_text(text)
    with pytest.raises(BadPlatform, match=message):
        read_platform(path)


def test_what_the_drill_starts_may_be_broken(tmp_path: Path) -> None:
    with ExitStack() as children:
        assert permitted(OwnLog(tmp_path, children), [], None, dry_run=False)
        assert not permitted(OwnLog(tmp_path, children), [], None, dry_run=True)


@pytest.mark.parametrize(
    ("allowed", "dry_run", "is_"),
    [([], False, False), (["staging"], False, True), (["k:9092"], False, True),
     (["other"], False, False), (["staging"], True, False)],
)  # fmt: skip
def test_another_has_to_be_allowed(allowed: list[str], dry_run: bool, is_: bool) -> None:
    assert permitted(foreign(), allowed, None, dry_run=dry_run) is is_


@pytest.mark.parametrize(
    ("name", "bootstrap"),
    [("prod", "k:1"), ("k-PRD-2", "k:1"), ("k", "kafka.production.example:9092"), ("live", "k:1")],
)
def test_a_production_name_has_to_be_said_again(name: str, bootstrap: str) -> None:
    platform = foreign(name, bootstrap)
    with pytest.raises(NotPermitted, match="production") as refused:
        permitted(platform, [name], None, dry_run=False)
    assert refused.value.exit_code == 5
    with pytest.raises(NotPermitted):
        permitted(platform, [name], "another", dry_run=False)
    assert permitted(platform, [name], name, dry_run=False)
    assert not permitted(platform, [], name, dry_run=False), "it has to be allowed, too"


def test_names_that_only_sound_like_production_are_none() -> None:
    assert permitted(foreign("products", "delivery:9092"), ["products"], None, dry_run=False)


def test_a_command_that_fails_says_so() -> None:
    with pytest.raises(CommandFailed, match="ended with 1"):
        ByCommands("k", "k:1", ["false"], ["true"]).kill()
    with pytest.raises(CommandFailed, match="did not end well"):
        ByCommands("k", "k:1", ["no-such-command-here"], ["true"]).kill()


def test_a_broker_that_was_killed_is_started_again_although_others_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platforms, "answers", lambda *asked: True)
    started = tmp_path / "started"
    platform = ByCommands("k", "k:1", ["true"], ["sh", "-c", f"echo >>{started}"])
    platform.start()
    assert not started.exists(), "it answers"
    platform.kill()
    platform.start()
    platform.start()
    assert started.read_text() == "\n"


def test_an_apache_kafka_that_is_not_there_is_named(tmp_path: Path) -> None:
    with ExitStack() as children, pytest.raises(BadPlatform, match="no Apache Kafka"):
        ApacheKafka(tmp_path, children, tmp_path)
