"""What keeps a broker from starting, or ends it: one clear line and an exit code."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer
from tests.conftest import COMMAND_ITSELF

COMMAND = Path(sys.executable).with_name("catchwater")


def run(*settings: str) -> tuple[int, list[str]]:
    command = [COMMAND, "broker", "run", *settings]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr.splitlines()


FREE = ("listeners=127.0.0.1:0", "catchwater.control.listener=127.0.0.1:0")


def test_a_data_directory_in_use_is_refused(broker):
    code, (line, *_) = run(*FREE, f"log.dirs={broker.data_dir}")
    assert code == 1
    assert str(broker.data_dir) in line
    assert broker.is_running


@pytest.mark.parametrize("key", ["listeners", "catchwater.control.listener"])
def test_a_port_in_use_is_refused(broker, tmp_path, key):
    taken = broker.settings[key]
    code, (line, *_) = run(*FREE, f"log.dirs={tmp_path}/d", f"{key}={taken}")
    assert code == 1
    assert taken.removeprefix("PLAINTEXT://") in line


def test_a_newer_format_is_refused(tmp_path):
    (tmp_path / "format").write_text("99\n")
    code, (line, *_) = run(*FREE, f"log.dirs={tmp_path}")
    assert code == 1
    assert "99" in line


def test_a_data_directory_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    code, (line, *_) = run(*FREE, f"log.dirs={tmp_path}/file/data")
    assert code == 1
    assert str(tmp_path) in line


def test_an_unknown_key_is_refused_with_the_nearest():
    code, (line, hint) = run("num.partition=3")
    assert code == 2
    assert "num.partition" in line
    assert "num.partitions" in hint


def test_sigterm_drains_and_the_next_start_has_everything(make_broker):
    broker = make_broker(start=False)
    broker.start(*COMMAND_ITSELF)
    failed = []
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for index in range(1000):
        producer.produce("t", b"%d" % index, on_delivery=lambda e, _: e and failed.append(e))
    assert producer.flush(60) == 0
    process = broker.process
    broker.stop()
    assert process.returncode == 0
    assert "Stopped." in broker.log()
    broker.start()
    assert not failed
    assert "Traceback" not in broker.log()


def test_ctrl_c_is_a_clean_end_too(make_broker):
    broker = make_broker(start=False)
    broker.start(*COMMAND_ITSELF)
    broker.process.send_signal(signal.SIGINT)
    assert broker.process.wait(60) == 0
