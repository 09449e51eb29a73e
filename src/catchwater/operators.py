"""What a user derives a function from: windows, joins, patterns, distinct events."""

from catchwater.pipeline.operators.distinct import Distinct
from catchwater.pipeline.operators.enriched import Enriched
from catchwater.pipeline.operators.joined import Joined
from catchwater.pipeline.operators.pattern import Found, Pattern, begin
from catchwater.pipeline.operators.windowed import Window, Windowed, session, sliding, tumbling

__all__ = [
    "Distinct",
    "Enriched",
    "Found",
    "Joined",
    "Pattern",
    "Window",
    "Windowed",
    "begin",
    "session",
    "sliding",
    "tumbling",
]
