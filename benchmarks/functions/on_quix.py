"""The card rule on Quix Streams; one process of two. Arguments: bootstrap in out group folder."""

import sys

from quixstreams import Application


def rule(event, state):
    small_at = state.get("small_at", 0)
    alerts = []
    if event["amount"] > 500 and small_at and event["at"] - small_at < 60_000:
        alerts = [{"card": event["card"], "id": event["id"], "rule": "small-then-large"}]
    state.set("small_at", event["at"] if event["amount"] < 1 else small_at)
    return alerts


def main() -> None:
    bootstrap, source, target, group, folder = sys.argv[1:6]
    app = Application(
        broker_address=bootstrap, consumer_group=group, auto_offset_reset="earliest",
        state_dir=folder, loglevel="WARNING",
    )  # fmt: skip
    events = app.topic(source, key_deserializer="str", value_deserializer="json")
    alerts = app.topic(target, key_serializer="str", value_serializer="json")
    frame = app.dataframe(events).apply(rule, stateful=True, expand=True)
    frame.to_topic(alerts)
    app.run()


if __name__ == "__main__":
    main()
