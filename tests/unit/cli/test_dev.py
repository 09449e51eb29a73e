"""The process tree of `catchwater dev` without Spark: a child ends with who started it."""

import io
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.ports import free_port

from catchwater.cli import dev
from catchwater.cli.init import FILES
from catchwater.clock import SYSTEM
from catchwater.pipeline.develop import Declared, Order, Snapshot, Tell
from catchwater.pipeline.functions.schema import Kind, StateSchema
from catchwater.pipeline.run.driver import Stop
from catchwater.pipeline.spark import session
from catchwater.wire.client import Client

PATIENCE_S = 120.0


def until(done: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_broker_ends_when_its_parent_does(tmp_path: Path) -> None:
    port, log, ready = free_port(), tmp_path / "broker.log", tmp_path / "ready"
    child = subprocess.Popen(
        [
            sys.executable, "-c", dev._CHILD, str(log), "broker", "run", "--kafka-port", str(port),
            "--control-port", "0", "--data", str(tmp_path / "data"), "--ready-file", str(ready),
        ],
        stdin=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        until(ready.exists)
        with Client(f"127.0.0.1:{port}", timeout_s=PATIENCE_S) as client:
            client.create_topics({"t": 1})
        assert "Ready:" in log.read_text()
        assert dev._control_of(ready) is not None
        assert child.stdin is not None
        child.stdin.close()  # as the end of its parent does
        assert child.wait(PATIENCE_S) == -signal.SIGKILL
    finally:
        child.kill()
        child.wait()


def test_code_that_is_wrong_from_the_start_is_waited_for_and_ctrl_c_ends_that(
    tmp_path: Path,
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text.replace("9092", "1"))
    function = tmp_path / "card_risk.py"
    function.write_text("import nowhere\n" + function.read_text())
    work = subprocess.Popen(
        [sys.executable, "-c", "from catchwater.cli import main; main()", "dev"],
        cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    try:
        assert work.stdout is not None
        said = b""
        while b"nothing runs yet" not in said:
            assert select.select([work.stdout], [], [], PATIENCE_S)[0], said
            said += os.read(work.stdout.fileno(), 4096)
        assert b"No module named 'nowhere', at" in said and b"line 1: import nowhere" in said
        work.send_signal(signal.SIGINT)
        assert work.wait(PATIENCE_S) == 0
        work.stdout.close()
        assert (
            not (tmp_path / "checkpoint").exists() and not (tmp_path / "catchwater-data").exists()
        )
    finally:
        work.kill()
        work.wait()


def test_a_file_that_is_missing_ends_it_with_its_name(catchwater: Any, tmp_path: Path) -> None:
    absent = tmp_path / "absent.toml"
    for flags in ((), ("--look",)):
        answer = catchwater("dev", absent, *flags)
        assert answer.code != 0 and f"There is no pipeline file {absent}" in answer.err


def test_a_port_that_something_else_has_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dev, "_ASK_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        stop = threading.Event()

        def answer_as_a_web_server_does() -> None:
            server.settimeout(0.1)
            while not stop.is_set():
                with suppress(TimeoutError):
                    client, _ = server.accept()
                    client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    client.close()

        thread = threading.Thread(target=answer_as_a_web_server_does, daemon=True)
        thread.start()
        work = dev._Dev("pipeline.toml", "b", Stop(), Tell(io.StringIO(), io.StringIO()), SYSTEM)
        address = f"127.0.0.1:{server.getsockname()[1]}"
        try:
            with pytest.raises(dev.BrokerGone, match="does not answer as a Kafka broker") as error:
                work._start_broker(seen(bootstrap=address))
        finally:
            stop.set()
            thread.join(PATIENCE_S)
    assert address in str(error.value) and "free port" in (error.value.hint or "")


def test_without_spark_nothing_is_started(
    catchwater: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise session.SparkMissing("A pipeline cannot run on Spark.", hint="Install it.")

    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(session, "check_packages", missing)
    answer = catchwater("dev", tmp_path / "pipeline.toml")
    assert answer.code == 1 and "cannot run on Spark" in answer.err and "Install it" in answer.err
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(FILES)


class Driver:
    """What the parent has said to its driver."""

    def __init__(self) -> None:
        self.orders: list[Order] = []

    def say(self, line: bytes) -> None:
        self.orders.append(msgspec.json.decode(line, type=Order))


def seen(part: str = "p", settings: str = "s", bootstrap: str = "b", **files: str) -> Snapshot:
    schema = StateSchema(["str"], Kind("int"), {})
    function = Declared("card-risk", 1, "/x/card_risk.py", part, schema)
    return Snapshot("card-risk", "/x", "/x/checkpoint", bootstrap, False, ["t"], "t", ["card"], {},
                [function], {"/x/card_risk.py": part, **files}, settings)  # fmt: skip


def test_a_driver_goes_on_with_what_has_changed_and_with_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    err, driver, started = io.StringIO(), Driver(), []
    work = dev._Dev("pipeline.toml", "b", Stop(), Tell(io.StringIO(), err), SYSTEM)
    monkeypatch.setattr(work, "_driver", driver)
    monkeypatch.setattr(work, "_stop_driver", lambda: started.append("stop"))
    monkeypatch.setattr(work, "_start_driver", lambda found: started.append("start"))

    def take(
        found: Snapshot, before: Snapshot, *, was_wrong: bool = False
    ) -> tuple[Snapshot, list[str]]:
        err.seek(err.truncate(0))
        runs = work._take_over(found, before, 7, was_wrong=was_wrong)
        return runs, err.getvalue().splitlines()

    assert take(seen("q"), seen()) == (seen("q"), [])
    assert driver.orders.pop() == Order("card-risk changed", 7)
    helper, helped = seen(**{"/x/rates.py": "1"}), seen(**{"/x/rates.py": "2"})
    assert take(helped, helper)[0] == helped
    assert driver.orders.pop() == Order("rates.py changed", 7, fresh_workers=True)
    assert take(seen(), seen()) == (seen(), [])
    assert take(seen(), seen(), was_wrong=True)[1] == [
        "dev       the code is as it was before; it goes on"
    ]
    assert take(seen(bootstrap="c"), seen())[0] == seen(), "what runs is what ran"
    assert not driver.orders and not started
    take(seen(settings="other"), seen())
    assert started == ["stop", "start"] and driver.orders == [Order()]
    monkeypatch.setattr(work, "_driver", None)
    take(seen(), seen())
    assert started == ["stop", "start", "start"], "one that ended begins with the next change"


def test_lines_are_taken_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    monkeypatch.setattr(dev.os, "read", lambda _, size, own=os.read: own(read, size))
    os.write(write, b'{"a":1}\n\n  {"b":2}\n{"c')
    os.write(write, b'":3}')
    os.close(write)
    assert [*dev._typed()] == [b'{"a":1}', b'{"b":2}', b'{"c":3}']
    os.close(read)
