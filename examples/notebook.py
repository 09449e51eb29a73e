"""A pipeline in a Spark session of one's own, cell by cell, and then on from the command line.

The same pipeline as fraud_routing.toml: one may begin where the other has stopped.
"""

# %% What runs, from where to where. Nothing is asked yet.
import os

from fraud_routing import CardScore, ReviewDesk
from pyspark.sql import SparkSession

from catchwater import Kafka, Pipeline, Topic

bootstrap = os.environ.get("BOOTSTRAP", "127.0.0.1:9092")
pipeline = Pipeline(
    "card-score",
    CardScore,
    ReviewDesk,
    source=Kafka(bootstrap, "payments", starting_offsets="earliest"),
    sinks=[Topic("scores", outputs_of=CardScore), Topic("cases")],
    dead_letter=Topic("not-payments"),
    checkpoint="checkpoint/fraud-routing",
)

# %% What would it do, and would it start?
print(pipeline.plan())

# %% It runs beside what else the session does.
spark = SparkSession.builder.master("local[2]").appName("notebook").getOrCreate()
running = pipeline.start(spark)

# %% Until it has done an epoch.
while running.progress is None:
    running.await_termination(1)
print(running.status, running.progress)

# %% A copy of its state, and what a restore from here would need.
print(pipeline.savepoint("friday").name, pipeline.contract().restore)

# %% Enough. The session is as it was.
running.stop()
print(running.status, spark.range(3).count())
spark.stop()

# %% Go on where it stopped: catchwater pipeline run fraud_routing.toml
