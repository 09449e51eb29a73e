"""Records as columns: their Arrow types.

Knows no decoder, so that who only plans a query loads none (numba takes half a second).
"""

from collections.abc import Mapping

import pyarrow as pa

HEADERS_TYPE = pa.list_(
    pa.field(
        "element",
        pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]),
    )
)
COLUMNS: Mapping[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("ms", "UTC"),
    "timestampType": pa.int32(),
    "headers": HEADERS_TYPE,
}
"""What `arrow.decode` builds; `timestampType` is 0 for the producer's time, 1 for the broker's."""
