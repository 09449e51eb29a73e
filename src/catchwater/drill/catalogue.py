"""The drills there are, each declared once: what ought to hold, what is broken, what is allowed."""

from collections.abc import Callable
from dataclasses import dataclass

from catchwater.drill import of_log, of_pipeline
from catchwater.drill.result import Budget
from catchwater.drill.scene import Scene


@dataclass(frozen=True)
class Drill:
    """One rehearsed failure."""

    name: str
    hypothesis: str
    blast_radius: str
    run: Callable[[Scene], None]
    takes: str
    """On a quiet machine."""
    budget: Budget = Budget()  # noqa: RUF009  (frozen)
    needs_spark: bool = False
    needs_ours: bool = False
    """It breaks what another Kafka does not have, or not where a drill could reach it."""
    needs_one_broker: bool = False
    """It breaks what a lone broker of ours keeps in its folder."""
    any_job: bool = False
    """A plain Spark job can be put through it, too."""
    needs_zones: bool = False
    """It takes several brokers, each in a zone of its own."""


_PIPELINE_ALONE = "One pipeline, started by the drill. The log and all that others run on it go on."
_ONE_LOG = "One broker, and everybody who writes to it or reads from it, until it is back."

_ALL = (
    Drill(
        name="kill-task",
        hypothesis="When Spark's Python workers die in mid-epoch, the epoch runs again and every "
        "row is written once.",
        blast_radius=_PIPELINE_ALONE,
        run=of_pipeline.kill_task,
        takes="1 min",
        needs_spark=True,
        any_job=True,
    ),
    Drill(
        name="kill-driver",
        hypothesis="When the driver dies, another begins by itself, catches up within its budget, "
        "and every row is written once.",
        blast_radius=_PIPELINE_ALONE,
        run=of_pipeline.kill_driver,
        takes="1 min",
        needs_spark=True,
        any_job=True,
    ),
    Drill(
        name="lose-machine",
        hypothesis="Without the driver's machine and its disk the pipeline is started elsewhere "
        "from its checkpoint, and every row is written once.",
        blast_radius=_PIPELINE_ALONE,
        run=of_pipeline.lose_machine,
        takes="1 min",
        budget=Budget(manual_steps=1),
        needs_spark=True,
        any_job=True,
    ),
    Drill(
        name="replace-broker",
        hypothesis="A broker that dies under load has on its return all that it acknowledged, once "
        "and in order.",
        blast_radius=_ONE_LOG,
        run=of_log.replace_broker,
        takes="10 s",
    ),
    Drill(
        name="replace-broker-at-rest",
        hypothesis="A broker that dies while nobody writes has on its return all that it "
        "acknowledged, once and in order.",
        blast_radius=_ONE_LOG,
        run=of_log.replace_broker_at_rest,
        takes="10 s",
    ),
    Drill(
        name="replace-broker-in-restore",
        hypothesis="A broker that dies while a pipeline replays from an older checkpoint delays "
        "the restore, and nothing else.",
        blast_radius=_ONE_LOG + " One pipeline, started by the drill.",
        run=of_pipeline.replace_broker_in_restore,
        takes="1 min",
        budget=Budget(manual_steps=3),
        needs_spark=True,
        any_job=True,
    ),
    Drill(
        name="zone-loss",
        hypothesis="When all brokers of a zone die, the others go on acknowledging, and have all "
        "that was acknowledged before while that zone is away.",
        blast_radius="A third of the brokers, and the clients connected to them, for some seconds.",
        run=of_log.zone_loss,
        takes="30 s",
        needs_zones=True,
    ),
    Drill(
        name="older-checkpoint",
        hypothesis="The pipeline goes back to its oldest retained checkpoint, replays what the log "
        "kept for it, and its sink is what it was.",
        blast_radius=_PIPELINE_ALONE + " Readers of its sink see no new rows meanwhile.",
        run=of_pipeline.older_checkpoint,
        takes="1 min",
        budget=Budget(manual_steps=3),
        needs_spark=True,
        any_job=True,
    ),
    Drill(
        name="backfill-live",
        hypothesis="A backfill of all history beside the live pipeline writes its rows once, and "
        "changes none of the live ones.",
        blast_radius="One pipeline and its backfill, both of the drill. The log serves both.",
        run=of_pipeline.backfill_live,
        takes="90 s",
        needs_spark=True,
    ),
    Drill(
        name="object-store-outage",
        hypothesis="While the object store is away records are acknowledged from the write-ahead "
        "log, and none is lost.",
        blast_radius=_ONE_LOG + " Reads of old records fail.",
        run=of_log.object_store_outage,
        takes="15 s",
        needs_ours=True,
        needs_one_broker=True,
    ),
    Drill(
        name="catalog-restart",
        hypothesis="A catalog that does not answer, and a broker that dies then, lose nothing that "
        "was acknowledged.",
        blast_radius=_ONE_LOG,
        run=of_log.catalog_restart,
        takes="15 s",
        needs_ours=True,
        needs_one_broker=True,
    ),
    Drill(
        name="slow-sink",
        hypothesis="While a sink takes hardly anything the pipeline waits for it and the log goes "
        "on taking input; afterwards it catches up, and every row is written once.",
        blast_radius=_PIPELINE_ALONE + " Readers of its sink see its rows late.",
        run=of_pipeline.slow_sink,
        takes="1 min",
        needs_spark=True,
    ),
    Drill(
        name="redeploy-at-peak",
        hypothesis="A pipeline that is stopped and started again under load catches up within its "
        "budget, and every row is written once.",
        blast_radius=_PIPELINE_ALONE,
        run=of_pipeline.redeploy_at_peak,
        takes="1 min",
        needs_spark=True,
        any_job=True,
    ),
    Drill(
        name="rollback-version",
        hypothesis="A bad version that has written is rolled back: state and sink are as if it had "
        "never been.",
        blast_radius=_PIPELINE_ALONE
        + " Readers of its sink see wrong rows, then their retraction.",
        run=of_pipeline.rollback_version,
        takes="2 min",
        budget=Budget(manual_steps=2),
        needs_spark=True,
        needs_ours=True,
    ),
    Drill(
        name="cold-replay",
        hypothesis="Readers of all history do not slow down those who write at the tail.",
        blast_radius=_ONE_LOG,
        run=of_log.cold_replay,
        takes="15 s",
    ),
)

DRILLS = {drill.name: drill for drill in _ALL}
"""By name, in the order in which `drill all` runs them."""
