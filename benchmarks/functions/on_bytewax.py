"""The card rule on Bytewax, two workers. The environment names bootstrap, topics and folder."""

import json
import os

import bytewax.operators as op
from bytewax.connectors.kafka import KafkaSinkMessage
from bytewax.connectors.kafka import operators as kop
from bytewax.dataflow import Dataflow

BOOTSTRAP = [os.environ["BOOTSTRAP"]]


def rule(small_at, event):
    small_at = small_at or 0
    alerts = []
    if event["amount"] > 500 and small_at and event["at"] - small_at < 60_000:
        alerts = [{"card": event["card"], "id": event["id"], "rule": "small-then-large"}]
    return event["at"] if event["amount"] < 1 else small_at, alerts


def keyed(message):
    event = json.loads(message.value)
    return event["card"], event


def message(pair):
    return KafkaSinkMessage(pair[0].encode(), json.dumps(pair[1]).encode())


flow = Dataflow("card-rule")
source = kop.input("in", flow, brokers=BOOTSTRAP, topics=[os.environ["SOURCE"]])
events = op.map("keyed", source.oks, keyed)
ruled = op.stateful_map("rule", events, rule)
alerts = op.flat_map_value("alerts", ruled, lambda found: found)
kop.output("out", op.map("message", alerts, message), brokers=BOOTSTRAP, topic=os.environ["TARGET"])
