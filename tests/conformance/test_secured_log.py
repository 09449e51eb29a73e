"""Our own log behind a proxy that speaks TLS: commands and sinks of kind `log` reach it."""

import asyncio
import contextlib
import json
import pickle
import shutil
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.secured_kafka import authority, certificate

from catchwater.cli import main
from catchwater.clock import Clock
from catchwater.replay.control import Control
from catchwater.replay.options import parse_options
from catchwater.sinks.base import OutputRecord
from catchwater.sinks.config import SinkContext, parse
from catchwater.sinks.epochs import Archive, StagedFile
from catchwater.sinks.kinds.log import KIND, LogSink
from catchwater.sinks.reconcile import verify
from catchwater.wire.client import LATEST, Client
from catchwater.wire.connection import OPEN_S

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Proxy:
    """TLS on its own port, plain bytes to and from the broker; runs in a thread."""

    def __init__(self, folder: Path) -> None:
        self.behind = 0
        self.port = 0
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(folder / "server.pem")
        self._started = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=[self._serve()])
        self._thread.start()
        assert self._started.wait(60)

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._joined, "127.0.0.1", 0, ssl=self._context)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stop.wait()
        server.close()
        await asyncio.sleep(0)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        for _ in range(3):  # turns of the loop in which an aborted transport closes its socket
            await asyncio.sleep(0)

    async def _joined(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind = await asyncio.open_connection("127.0.0.1", self.behind)
        try:
            await asyncio.wait(
                [asyncio.ensure_future(self._pump(reader, behind[1])),
                 asyncio.ensure_future(self._pump(behind[0], writer))],
                return_when=asyncio.FIRST_COMPLETED,
            )  # fmt: skip
        except asyncio.CancelledError:
            for each in (writer, behind[1]):
                each.transport.abort()
            raise
        for each in (writer, behind[1]):
            each.close()

    @staticmethod
    async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def secured(
    tmp_path: Path, make_broker: Callable[..., Any]
) -> Iterator[tuple[Path, Proxy, Control]]:
    if not shutil.which("openssl"):
        pytest.skip("certificates need openssl")
    authority(tmp_path, "ca")
    certificate(tmp_path, "server", "subjectAltName=IP:127.0.0.1")
    proxy = Proxy(tmp_path)
    broker = make_broker({"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"})
    proxy.behind = broker.port
    yield tmp_path, proxy, Control(broker.control_url)
    proxy.close()
    broker.kill()


def test_commands_log_sinks_and_who_waits_reach_a_log_behind_tls(
    secured: tuple[Path, Proxy, Control],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, proxy, control = secured
    address = f"127.0.0.1:{proxy.port}"
    security = {"security.protocol": "SSL", "ssl.ca.location": str(folder / "ca.crt")}
    (folder / "client.properties").write_text("".join(f"{k}={v}\n" for k, v in security.items()))

    def sink(name: str, delivery: str) -> LogSink:
        source = {f"kafka.{key}": value for key, value in security.items()}
        options = parse_options({**source, "kafka.bootstrap.servers": address, "subscribe": "t"})
        context = SinkContext(
            "cards",
            folder.as_uri(),
            folder,
            bootstrap=address,
            security=options.security,
            control=control,
        )
        config = parse(name, {"kind": "log", "topic": name, "delivery": delivery})
        return KIND.open(config, context, Archive(StagedFile(folder.as_uri(), f"staged/{name}")))

    for name, delivery in (("once", "exactly-once"), ("again", "at-least-once")):
        written = sink(name, delivery)
        stager = pickle.loads(pickle.dumps(written.stager()))
        record = OutputRecord(b"k", b"v", time.time_ns() // 1_000_000)
        assert written.commit(0, [stager.stage(0, 0, [record], *_clock(delivery))]).records == 1
        assert verify(written, 0).findings == ()
        written.close()

    reach = ["--bootstrap", address, "--command-config", str(folder / "client.properties")]
    monkeypatch.setattr(sys, "argv", ["catchwater", "topic", "list", "--json", *reach])
    with pytest.raises(SystemExit) as left:
        main()
    assert not left.value.code
    assert {row["topic"] for row in json.loads(capsys.readouterr().out)} >= {"once", "again"}

    secured_by = parse_options(
        {f"kafka.{key}": value for key, value in security.items()}
        | {"kafka.bootstrap.servers": address, "subscribe": "once"}
    ).security
    with Client(address, security=secured_by) as client:
        ends = client.list_offsets({("once", 0): LATEST})
        took_s = []
        for _ in range(3):
            client.close()
            client.metadata()
            began_s = time.monotonic()
            assert not client.wait(ends, 0.5)
            took_s.append(time.monotonic() - began_s)
        assert min(took_s) < OPEN_S / 2, "the session tickets of TLS are no reply to wait for"


def _clock(delivery: str) -> list[Clock]:
    """What the staging of an epoch takes besides its records."""
    return [Clock(7)] if delivery == "exactly-once" else []
