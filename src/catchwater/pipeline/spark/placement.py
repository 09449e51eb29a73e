"""Lets Spark run an epoch's tasks where their shards' local stores are.

A task of a shuffle runs anywhere. One of a union runs where most of its parents' partitions are, if
all of them are partitioned alike. So each stage's rows are united with an *anchor*: a cached table
of no rows, partitioned as they are, each of whose partitions lies on the executor that is to run
that partition's task. Nothing but time rests on it: where Spark has no free core there for as long
as `spark.locality.wait` says, or the executor is gone, the task runs elsewhere and reads what that
machine lacks.

Which host that is follows from the ledger, which says where each shard was in the epoch before, and
from the executors that there are: `assign` moves no more than it must to give each its share. An
executor that joins is first asked what it is (`session.check_executors`).

Relies on `spark.sql.unionOutputPartitioning` (Spark 4.1) and on `SparkContext.makeRDD`, which only
the JVM has.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from catchwater.clock import Clock
from catchwater.pipeline.rows import SPARK_SCHEMA, shard_labels, spark_hash
from catchwater.recovery.ledger import Ledger, ShardEpoch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Operator = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_VOTES = 2
"""How often a stage's rows are united with the anchor: Spark prefers hosts that hold a fifth of a
task's rows, too, and each has one vote."""

_GATHER_S, _POLL_S = 5.0, 0.05

_NO_STAGE = -2
"""Of the anchor's rows, which no task is given."""


class Homes:
    """Where the tasks of a pipeline's epochs run."""

    def __init__(
        self,
        spark: "SparkSession",
        operators: Sequence[Operator],
        ledger: Ledger,
        ask: Callable[[Sequence[str]], Mapping[str, str]],
        *,
        tasks: int,
        shards: int,
        clock: Clock,
    ) -> None:
        """`ask`: looks at the executors of these hosts, each as Spark knows it, and says what it
        calls itself; raises `SessionUnfit` for one that cannot run the pipeline.
        """
        self._spark = spark
        self._operators = operators
        self._ledger = ledger
        self._ask = ask
        self._tasks = tasks
        self._clock = clock
        self._task_of = [spark_hash(label) % tasks for label in shard_labels(shards)]
        self._names: dict[str, str] = {}
        """What hosts call themselves, as the ledger has it."""
        self._homes: list[str] = []
        self._anchor: Any = None

    def place(self, rows: "DataFrame", epoch: int) -> "DataFrame":
        """Run the stages on an epoch's rows; what comes of them.

        Raises `SessionUnfit`, `LedgerDamaged`.
        """
        before = self._ledger.base(epoch)
        shards = before.shards if before else ()
        hosts = self._gathered(len({each.host for each in shards}))
        if strange := sorted(hosts.keys() - self._names.keys()):
            self._names |= self._ask(strange)
        homes = assign(self._were(shards, hosts), hosts)
        if homes != self._homes:
            if self._anchor is not None:
                self._anchor.unpersist()
            self._anchor = anchor(rows.sparkSession, homes) if homes else None
            self._homes = homes
        for operator in self._operators:
            shuffled = rows.repartition(self._tasks, "label")
            for _ in range(_VOTES if self._anchor is not None else 0):
                shuffled = shuffled.union(nothing_of(self._anchor))
            rows = shuffled.mapInArrow(operator, SPARK_SCHEMA)
        return rows

    def _gathered(self, hosts: int) -> Counter[str]:
        """The hosts of executors; at first, once there are so many, or no more within a while.

        Executors come one after the other, and whose are late would lose their shards to others.
        """
        until_s = self._clock.monotonic_s() + (0 if self._homes else _GATHER_S)
        while len(found := executor_hosts(self._spark)) < hosts:
            if self._clock.monotonic_s() >= until_s:
                break
            self._clock.pause(_POLL_S)
        return found

    def _were(self, shards: Iterable[ShardEpoch], hosts: Mapping[str, int]) -> list[str | None]:
        """By task: the host that holds most of the state of its shards, among these."""
        known = {name: host for host, name in self._names.items() if host in hosts}
        held = [Counter[str]() for _ in range(self._tasks)]
        for each in shards:
            if each.host in known:
                held[self._task_of[each.shard]][known[each.host]] += 1 + each.state_bytes
        return [max(sizes, key=lambda host: sizes[host], default=None) for sizes in held]


def assign(were: Sequence[str | None], hosts: Mapping[str, int]) -> list[str]:
    """A host for each task, by where they were: as many a host as it has executors.

    A task stays where it was, unless that host is gone or has more than its share. Pure.
    """
    if not hosts:
        return []
    held = Counter(host for host in were if host is not None)
    share = _shares(len(were), hosts, held)
    found: list[str | None] = []
    for host in were:
        stays = host is not None and share.get(host, 0) > 0
        found.append(host if stays else None)
        if stays and host is not None:
            share[host] -= 1
    free = iter([host for host in sorted(share) for _ in range(share[host])])
    return [host or next(free) for host in found]


def _shares(tasks: int, hosts: Mapping[str, int], held: Mapping[str, int]) -> dict[str, int]:
    """How many tasks each host is given; what cannot be divided goes where most tasks are."""
    executors = sum(hosts.values())
    share = {host: tasks * number // executors for host, number in hosts.items()}
    over = {host: held.get(host, 0) - share[host] for host in hosts}
    for host in sorted(over, key=lambda host: (-over[host], host))[: tasks - sum(share.values())]:
        share[host] += 1
    return share


def anchor(spark: "SparkSession", homes: Sequence[str]) -> "DataFrame":
    """A cached table of a row a task, whose partition i lies on host i.

    Each row is made there, and Spark shuffles it to a task beside it, since it prefers a host that
    has all of a task's rows.
    """
    from pyspark.sql import functions as f

    tasks = len(homes)
    rows = located(spark, list(zip(_label_for_each(tasks), homes, strict=True))).select(
        "label", f.lit(_NO_STAGE).alias("stage"), f.lit(-1).alias("shard"),
        f.lit(0).cast("long").alias("sequence"), f.lit(b"").alias("blob"),
    )  # fmt: skip
    made = rows.repartition(tasks, "label").persist()
    made.count()  # now, while nothing else keeps an executor busy: it lies where it was made first
    return made


def nothing_of(anchor: "DataFrame") -> "DataFrame":
    """The anchor without its rows, which Spark does not know of before it looks at each."""
    return anchor.filter(f"stage <> {_NO_STAGE}")


def _label_for_each(tasks: int) -> list[int]:
    """Labels by task: one that Spark shuffles there."""
    found: dict[int, int] = {}
    for label in count():
        found.setdefault(spark_hash(label) % tasks, label)
        if len(found) == tasks:
            return [found[task] for task in range(tasks)]
    raise AssertionError("numbers do not end")


def located(spark: "SparkSession", rows: Sequence[tuple[int, str]]) -> "DataFrame":
    """A table of one column, `label`, each row of which is made on its host, if that is there."""
    from pyspark.sql.classic.dataframe import DataFrame

    context = spark.sparkContext
    jvm, gateway = context._jvm, context._gateway
    placed = []
    for label, host in rows:
        values = gateway.new_array(jvm.java.lang.Object, 1)
        values[0] = label
        row = jvm.org.apache.spark.sql.RowFactory.create(values)
        placed.append(jvm.scala.Tuple2(row, jvm.PythonUtils.toSeq([host])))
    any_class = jvm.scala.reflect.ClassTag.Any()
    made = context._jsc.sc().makeRDD(jvm.PythonUtils.toSeq(placed), any_class).toJavaRDD()
    schema = jvm.org.apache.spark.sql.types.StructType.fromDDL("label int")
    return DataFrame(spark._jsparkSession.createDataFrame(made, schema), spark)


def executor_hosts(spark: "SparkSession") -> Counter[str]:
    """The hosts that run tasks, as Spark knows them, each with the number of its executors."""
    context = spark.sparkContext
    found = Counter(
        str(each.host()) for each in context._jsc.sc().statusTracker().getExecutorInfos()
    )
    # The driver is listed as well.
    found[context.getConf().get("spark.driver.host", "")] -= 1
    return +found
