"""What a user derives or makes a function from: windows, joins, patterns, one event at a time."""

from catchwater.pipeline.operators.aggregated import (
    Aggregated,
    count,
    max,
    mean,
    min,
    sum,
    top_k,
)
from catchwater.pipeline.operators.basic import Distinct, filter, flat_map, map
from catchwater.pipeline.operators.enriched import Enriched
from catchwater.pipeline.operators.joined import Joined
from catchwater.pipeline.operators.pattern import Match, Pattern, begin
from catchwater.pipeline.operators.windowed import Window, Windowed, session, sliding, tumbling

__all__ = [
    "Aggregated",
    "Distinct",
    "Enriched",
    "Joined",
    "Match",
    "Pattern",
    "Window",
    "Windowed",
    "begin",
    "count",
    "filter",
    "flat_map",
    "map",
    "max",
    "mean",
    "min",
    "session",
    "sliding",
    "sum",
    "top_k",
    "tumbling",
]
