"""An HTTP endpoint that scores cards: it answers, says no, or hangs, and counts who asked what."""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FUNCTION = '''"""Large payments get the score that an endpoint gives their card."""
from dataclasses import dataclass
from urllib.request import urlopen
from catchwater import Breaker, Call, Context, Keyed, Out, function

@dataclass
class Txn:
    card: str
    id: str
    at: int
    amount: float

@dataclass
class Scored:
    card: str
    id: str
    score: str

@dataclass
class Nothing:
    pass

@function(name="scored", key="card", event_time="at", late="process", poison="dead-letter",
          calls={{"score": Call(timeout="{timeout}", attempts=2, backoff="100ms", breaker={breaker},
                              on_failure="{on_failure}")}})
class Score(Keyed[Txn, Nothing, Scored]):
    def ask_score(self, e: Txn) -> str | None:
        return e.card if e.amount > 500 else None
    def call_score(self, question: str) -> str:
        with urlopen("{url}/" + question, timeout=60) as answer:
            return answer.read().decode()
    def on_event(self, e: Txn, s: Nothing, ctx: Context) -> Out[Scored]:
        if e.amount > 500:
            return [Scored(e.card, e.id, ctx.answer("score") or "unknown")]
'''


class Stub:
    """What the endpoint does, and what it was asked: seconds by card."""

    def __init__(self) -> None:
        self.url = ""
        self.hanging: set[str] = set()
        self.failing: set[str] = set()
        self.asked: defaultdict[str, list[float]] = defaultdict(list)
        self.let_go = threading.Event()

    @property
    def requests(self) -> int:
        return sum(map(len, self.asked.values()))


@contextmanager
def stub_endpoint() -> Iterator[Stub]:
    """A stub on loopback for as long as this lasts."""
    stub = Stub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            card = self.path.strip("/")
            stub.asked[card].append(time.monotonic())
            if card in stub.hanging:
                stub.let_go.wait(60)
            failed = card in stub.failing
            answer = f"{sum(card.encode())}, asked {len(stub.asked[card])} times".encode()
            self.send_response(500 if failed else 200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def handle(self) -> None:
            try:
                super().handle()
            except ConnectionError:
                pass  # the caller has given up

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

    with Server(("127.0.0.1", 0), Handler) as server:
        stub.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield stub
        finally:
            stub.let_go.set()
            server.shutdown()
            thread.join()
