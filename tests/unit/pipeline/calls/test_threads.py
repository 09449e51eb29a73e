"""Threads that may be left behind."""

import subprocess
import sys
import threading

from catchwater.pipeline.calls.ask import Threads

HANG = """
import threading, time
from catchwater.pipeline.calls.ask import Threads
started = threading.Event()
def hang():
    started.set()
    threading.Event().wait(600)
Threads("call", 1).run(hang)
started.wait()
"""


def test_a_thread_is_used_again():
    threads = Threads("call", 10)
    for _ in range(20):
        ran = threading.Event()
        assert threads.run(ran.set)
        assert ran.wait(60)
    # A thread may say that it is free a moment after its job was seen to be done.
    assert threads.count <= 10


def test_no_more_threads_hang_than_the_limit():
    threads = Threads("call", 3)
    let_go = threading.Event()
    try:
        assert [threads.run(let_go.wait) for _ in range(5)] == [True, True, True, False, False]
        assert threads.count == 3
    finally:
        let_go.set()


def test_the_interpreter_exits_though_a_call_hangs():
    assert subprocess.run([sys.executable, "-c", HANG], timeout=300).returncode == 0
