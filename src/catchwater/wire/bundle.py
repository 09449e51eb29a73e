"""A bundle: records as they lie, and for each of them one long that says where.

Knows neither Arrow nor a decoder: brokers compile their loops without the one, and who only plans a
query does without the other (numba takes half a second).
"""

# The places of a record in one long, from its lowest bit: where its value begins, how many bytes
# lie between key and value (the value's size, a varint), the sizes of value and key, and the
# milliseconds since the oldest record of the bundle. All ones in a size is null. numba keeps
# compiled code until `kernels.py` itself changes: change that, too, with one of these.
AT_BITS, GAP_BITS, VALUE_BITS, KEY_BITS, TIME_BITS = 18, 2, 15, 9, 20
GAP_SHIFT = AT_BITS
VALUE_SHIFT = GAP_SHIFT + GAP_BITS
KEY_SHIFT = VALUE_SHIFT + VALUE_BITS
TIME_SHIFT = KEY_SHIFT + KEY_BITS
NO_VALUE, NO_KEY = 2**VALUE_BITS - 1, 2**KEY_BITS - 1
BUNDLE_BYTES = 2**AT_BITS
"""A bundle of more than one record has no more: in the JVM it is an array, which its collector has
to treat as large from 512 KiB on."""
# What a bundle says in arrays, where its records do not fit the long: offsets that do not follow
# each other, times, and long keys or values.
HOLES, FAR_TIMES, LONG = 1, 2, 4
