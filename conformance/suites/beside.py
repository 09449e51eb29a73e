"""Work that goes on beside what a suite does."""

import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def beside(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """While the `with` lasts `work` has a thread; left before it is done, it is told to stop."""
    stopped = threading.Event()
    thread = threading.Thread(target=work, args=(stopped,))
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
