"""Kafka Streams: words counted exactly once by a program that is killed over and over.

[WordCount](java/WordCount.java) has a repartition topic and a store with a changelog, under
`exactly_once_v2`. Lines are fed while it is killed; it is started again over its state, then over
none, which it restores from the changelog. In a second application another instance joins and the
first is killed; under a third the broker is killed twice. What a reader of committed records then
finds must be, for every word, the counts 1, 2, 3, ... to what Python counts: no gap, no repeat,
nothing left of an unfinished transaction.
"""

import contextlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from conformance.programs import BUILT
from conformance.suites.jvm import Jvms, Late, compiled, jvms, libraries
from conformance.suites.mortal import mortal
from conformance.suites.outcome import Outcome, judged
from conformance.suites.promises import miscounted
from conformance.suites.reading import UNCOMMITTED
from conformance.suites.word_counts import Application

SOURCE = Path(__file__).parent / "java" / "WordCount.java"


def run(bootstrap: str, folder: Path) -> Iterator[Outcome]:
    """Two applications, one after another. Raises `Missing`."""
    with counting(folder) as programs:
        for story in (killed, joined):
            yield from told(Application(story.__name__, bootstrap, folder, programs), story)


def run_killing(against: str, folder: Path) -> Iterator[Outcome]:
    """One more, whose broker is killed at a third and at two thirds. Raises `Missing`."""

    def broker_killed(application: Application) -> None:
        application.start("a")
        for part in (1 / 3, 2 / 3):
            application.when_counted(part)
            broker.kill()
            broker.start()

    with mortal(against, folder) as broker, counting(folder) as programs:
        application = Application("broker-killed", broker.bootstrap, folder, programs)
        yield from told(application, broker_killed)


@contextlib.contextmanager
def counting(folder: Path) -> Iterator[Jvms]:
    """Somewhere to start `WordCount`. Raises `Missing`, `CalledProcessError`."""
    library = libraries("streams")
    classes = compiled(SOURCE, library, BUILT / "suites" / "classes")
    with jvms(f"{classes}:{library}/*", folder) as programs:
        yield programs


def told(application: Application, story: Callable[[Application], None]) -> Iterator[Outcome]:
    """Take the application through its story, feeding it, to the last word."""
    try:
        with application.feeding():
            story(application)
            application.when_counted(1.0)
    except Late as late:
        yield Outcome(f"{application.name}: goes on", "failed", str(late))
    yield from judge(application)


def killed(application: Application) -> None:
    """Killed at a third and at two thirds; the second time its state is lost."""
    instance = application.start("a")
    for part, loses_state in ((1 / 3, False), (2 / 3, True)):
        application.when_counted(part)
        instance.kill()
        if loses_state:
            shutil.rmtree(application.state("a"))
        instance = application.start("a")


def joined(application: Application) -> None:
    """Another instance joins, the first is killed and comes back, the other is killed."""
    first = application.start("a")
    application.when_counted(0.2)
    second = application.start("b")
    application.when_running(second)
    application.when_counted(0.5)
    first.kill()
    application.when_counted(0.7)
    application.when_running(application.start("a"))
    second.kill()


def judge(application: Application) -> Iterator[Outcome]:
    """What the instances told, and what the output holds when all have stopped."""
    name = application.name
    died = [event["what"] for jvm in application.instances for event in jvm.events("died")]
    problem = f"{len(died)}, the first of {died[0]}" if died else ""
    yield judged(f"{name}: no thread dies", problem, f"{len(application.instances)} instances")
    kept = application.stop()
    yield judged(f"{name}: the last instances end when told", f"{kept} do not" if kept else "")
    try:
        application.when_closed()
        updates = application.updates()
        aborted = len(application.updates(UNCOMMITTED)) - len(updates)
    except Late as late:
        yield Outcome(f"{name}: no transaction is left open", "failed", str(late))
        return
    yield Outcome(f"{name}: no transaction is left open", "passed")
    wanted = Counter(word for line in application.lines for word in line.split())
    final = dict(updates)
    wrong = [word for word in wanted if final.get(word) != wanted[word]]
    note = f"{sum(wanted.values())} words, {len(wanted)} different"
    yield judged(f"{name}: the last counts are right", _shown(wrong), note)
    problem = _shown(miscounted(updates, wanted))
    note = f"{aborted} counts of aborted transactions are not among them"
    yield judged(f"{name}: a word's counts have no gap and no repeat", problem, note)


def _shown(words: list[str]) -> str:
    return f"not of {len(words)} words, {words[:5]}" if words else ""
