"""Kafka's own programs over TLS, with logins that end every ten seconds, and under rules.

Rules and a user are made by `kafka-acls` and `kafka-configs`, by an administrator who logs in. Then
that user's console clients, Streams application, Connect worker and Spark's connector do what rules
allow and no more. Streams and Connect go through the stories of their own suites, killed as there;
what they leave in the log is looked at in plaintext.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from benchmarks.kafka_jars import jars
from benchmarks.replay.sessions import peer_python

from conformance.suites import connect, streams, ways_in
from conformance.suites.growing_file import GrowingFile
from conformance.suites.jvm import jvms, libraries, properties
from conformance.suites.outcome import Outcome, judged
from conformance.suites.reading import COMMITTED, whole
from conformance.suites.tools.jvm import Tools, Wrong
from conformance.suites.word_counts import Application

PROTOCOL = "SASL_SSL"
ADMIN, USER, NOBODY = "admin", "alice", "bob"
PASSWORDS = {ADMIN: "root-secret", USER: "alice-secret", NOBODY: "bobs-secret"}
OWN = "own-"
"""What the user's names begin with."""
SPARK_S = 240.0
_LATE = ("--timeout-ms", "15000")
"""When a console consumer that gets nothing gives up."""
SPARK = Path(__file__).with_name("through_spark.py")


def settings(against: str, folder: Path) -> dict[str, str]:
    """With logins that end."""
    return ways_in.settings(against, folder, [PROTOCOL], PASSWORDS) | {
        "super.users": f"User:ANONYMOUS;User:{ADMIN}",
        "connections.max.reauth.ms": "10000",
    }


def run(bootstrap: str, folder: Path) -> Iterator[Outcome]:
    """One program after the other. Raises `Missing`."""
    ways_in.add_user(bootstrap, ADMIN, PASSWORDS[ADMIN])
    with closing(Tools(ways_in.addresses(folder)[PROTOCOL], folder)) as tools:
        yield from administered(tools, folder)
    alice = client(folder, USER)
    with streams.counting(folder) as programs:
        application = Application(f"{OWN}words", bootstrap, folder, programs, alice)
        yield from streams.told(application, streams.killed)
    with jvms(f"{libraries('connect')}/*", folder) as programs:
        file = GrowingFile(f"{OWN}file", bootstrap, folder, connect.PARTITIONS)
        yield from connect.standalone(file, programs, alice)
    yield from through_spark(bootstrap, folder, file)


def client(folder: Path, user: str) -> dict[str, str]:
    return ways_in.java_client(folder, PROTOCOL, user, PASSWORDS[user])


def administered(tools: Tools, folder: Path) -> Iterator[Outcome]:
    """Users and rules are made; then what they allow is done, and nothing else."""
    story = Administration(tools, folder)
    for body in (story.users_are_made, story.rules_are_made, story.obeyed, story.taken_back):
        name = f"tools: {body.__name__}"
        try:
            body()
        except Wrong as reason:
            yield Outcome(name, "failed", str(reason))
        else:
            yield Outcome(name, "passed")


class Administration:
    """What an administrator does with the tools, and what others then may."""

    topic = f"{OWN}console"

    def __init__(self, tools: Tools, folder: Path) -> None:
        self._tools = tools
        self._as = {
            user: ("--command-config", properties(folder / f"{user}.conf", client(folder, user)))
            for user in PASSWORDS
        }

    def users_are_made(self) -> None:
        tools, admin = self._tools, self._as[ADMIN]
        for user in (USER, NOBODY):
            who = ("--entity-type", "users", "--entity-name", user)
            given = f"SCRAM-SHA-512=[password={PASSWORDS[user]}]"
            tools("configs", *admin, "--alter", *who, "--add-config", given).tells("Completed")
        shown = tools("configs", *admin, "--describe", "--entity-type", "users")
        shown.tells(f"'{USER}'", f"'{NOBODY}'", "SCRAM-SHA-512=iterations=4096")

    def rules_are_made(self) -> None:
        """Connect's sinks read as a group that is called after them."""
        tools, admin = self._tools, self._as[ADMIN]
        for kind, name in (("topic", OWN), ("group", OWN), ("group", f"connect-{OWN}"),
                           ("transactional-id", OWN)):  # fmt: skip
            rule = ("--allow-principal", f"User:{USER}", "--operation", "All")
            named = (f"--{kind}", name, "--resource-pattern-type", "prefixed")
            tools("acls", *admin, "--add", *rule, *named).tells(f"User:{USER}")
        listed = tools("acls", *admin, "--list")
        listed.tells(*(f"{kind}, name={OWN}" for kind in ("TOPIC", "GROUP", "TRANSACTIONAL_ID")))

    def obeyed(self) -> None:
        tools, alice, bob = self._tools, self._as[USER], self._as[NOBODY]
        tools("topics", *alice, "--create", "--topic", self.topic).tells("Created topic")
        tools("topics", *alice, "--create", "--topic", "others").refuses("uthoriz")
        tools("console-producer", *alice, "--topic", self.topic, stdin="water\n").tells()
        tools(*self._read(f"{OWN}g"), *alice, "--max-messages", "1").tells("^water$")
        tools(*self._read(f"{OWN}g"), *bob, *_LATE).lacks("^water$")
        tools("topics", *bob, "--list").tells().lacks(self.topic)

    def taken_back(self) -> None:
        tools, admin, alice = self._tools, self._as[ADMIN], self._as[USER]
        write = ("console-producer", *alice, "--topic", self.topic)
        deny = ("--deny-principal", f"User:{USER}", "--operation", "Write", "--topic", self.topic)
        tools("acls", *admin, "--add", *deny).tells("DENY")
        tools(*write, stdin="denied\n")
        tools("acls", *admin, "--remove", "--force", *deny).tells()
        tools(*write, stdin="again\n").tells()
        found = tools(*self._read(f"{OWN}other"), *alice, "--max-messages", "2", *_LATE)
        found.tells("^water$", "^again$").lacks("^denied$")
        tools("acls", *alice, "--list").refuses("uthoriz")

    def _read(self, group: str) -> tuple[str, ...]:
        """What the tools log, refusals too, is not seen: this set of jars writes no log."""
        more = ("--from-beginning", "--group", group)
        return ("console-consumer", "--topic", self.topic, *more)


def through_spark(bootstrap: str, folder: Path, file: GrowingFile) -> Iterator[Outcome]:
    """Spark's own connector reads the lines of Connect's topic as a stream into another one."""
    target = f"{OWN}spark"
    python, found = peer_python(), sorted(jars("connector").glob("*"))
    options = {f"kafka.{key}": value for key, value in client(folder, USER).items()}
    options["groupIdPrefix"] = OWN
    with tempfile.TemporaryDirectory(dir=folder) as checkpoint:
        told = {"options": options, "from": file.topic, "to": target, "checkpoint": checkpoint,
                "jars": ",".join(map(str, found))}  # fmt: skip
        with (folder / "spark.log").open("wb") as log:
            ended = subprocess.run(
                [python, SPARK], input=json.dumps(told).encode(), stdout=log, stderr=log,
                env={**os.environ, "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"},
                timeout=SPARK_S, check=False,
            )  # fmt: skip
    problem = f"ended with {ended.returncode}, see {folder / 'spark.log'}" * bool(ended.returncode)
    yield judged("spark: the query ends", problem)
    lines = {message.value() for message in whole(bootstrap, target, 1, COMMITTED)}
    wanted = {f"line {number}".encode() for number in range(file.lines)}
    gone = len(wanted - lines)
    yield judged("spark: every line is in the other topic", f"{gone} are not" if gone else "")
