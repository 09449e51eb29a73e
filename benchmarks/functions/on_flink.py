"""The card rule on PyFlink, parallelism two. Arguments: bootstrap in out group folder jar."""

import json
import sys
from pathlib import Path

from pyflink.common import Types, WatermarkStrategy
from pyflink.common.configuration import Configuration
from pyflink.common.serialization import SimpleStringSchema
from pyflink.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from pyflink.datastream.connectors.kafka import (
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
)
from pyflink.datastream.state import ValueStateDescriptor


class Rule(KeyedProcessFunction):
    def open(self, runtime_context):
        self.small_at = runtime_context.get_state(ValueStateDescriptor("small_at", Types.LONG()))

    def process_element(self, event, context):
        small_at = self.small_at.value() or 0
        if event["amount"] > 500 and small_at and event["at"] - small_at < 60_000:
            yield json.dumps({"card": event["card"], "id": event["id"], "rule": "small-then-large"})
        self.small_at.update(event["at"] if event["amount"] < 1 else small_at)


def main() -> None:
    bootstrap, source, target, group, folder, jar = sys.argv[1:7]
    settings = Configuration()
    settings.set_string("execution.checkpointing.interval", "1s")
    settings.set_string("execution.checkpointing.dir", Path(folder).as_uri())
    settings.set_string("state.backend.type", "rocksdb")
    # In its own process, Python would ask the JVM for every state; this is what Flink advises.
    settings.set_string("python.execution-mode", "thread")
    settings.set_string("pipeline.jars", Path(jar).as_uri())
    environment = StreamExecutionEnvironment.get_execution_environment(settings)
    environment.set_parallelism(2)
    events = environment.from_source(
        KafkaSource.builder()
        .set_bootstrap_servers(bootstrap).set_topics(source).set_group_id(group)
        .set_starting_offsets(KafkaOffsetsInitializer.earliest())
        .set_value_only_deserializer(SimpleStringSchema()).build(),
        WatermarkStrategy.no_watermarks(), "payments",
    )  # fmt: skip
    alerts = (
        events.map(json.loads)
        .key_by(lambda event: event["card"], key_type=Types.STRING())
        .process(Rule(), output_type=Types.STRING())
    )
    schema = (
        KafkaRecordSerializationSchema.builder()
        .set_topic(target).set_value_serialization_schema(SimpleStringSchema()).build()
    )  # fmt: skip
    sink = KafkaSink.builder().set_bootstrap_servers(bootstrap).set_record_serializer(schema)
    alerts.sink_to(sink.build())
    environment.execute("card-rule")


if __name__ == "__main__":
    main()
