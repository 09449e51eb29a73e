"""Values in Protobuf: one message each, of a type that a descriptor set describes.

Types as in Spark's own Protobuf functions, but exact: uint32 is a long and uint64 a decimal(20,0).
An enum is the name of its value (its number, where it has none), google.protobuf.Timestamp a
timestamp. A field with presence that is not set is null; one without is its type's default.
Messages that hold themselves are refused, because no column could hold them; leave them out by
`valueFields`. Unknown fields are ignored.
"""

from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf import message, message_factory
from google.protobuf.descriptor import FieldDescriptor
from pyspark.sql import types

from catchwater.values.decoder import Cells, Decoder, only, refused
from catchwater.values.descriptors import PROTOBUF_TIMESTAMP, is_map, is_repeated, message_of
from catchwater.values.settings import ValueSettings

_PLAIN: dict[int, types.DataType] = {
    FieldDescriptor.CPPTYPE_INT32: types.IntegerType(),
    FieldDescriptor.CPPTYPE_UINT32: types.LongType(),
    FieldDescriptor.CPPTYPE_INT64: types.LongType(),
    FieldDescriptor.CPPTYPE_UINT64: types.DecimalType(20, 0),
    FieldDescriptor.CPPTYPE_FLOAT: types.FloatType(),
    FieldDescriptor.CPPTYPE_DOUBLE: types.DoubleType(),
    FieldDescriptor.CPPTYPE_BOOL: types.BooleanType(),
    FieldDescriptor.CPPTYPE_ENUM: types.StringType(),
    FieldDescriptor.CPPTYPE_STRING: types.StringType(),
}

Convert = Callable[[Any], Any]


def protobuf_decoder(settings: ValueSettings) -> Decoder:
    """The decoder of `valueMessage` in a serialized FileDescriptorSet. Raises `BadSchema`."""
    described = message_of(settings)
    known = described.fields_by_name
    names = only(settings.fields, [field.name for field in described.fields])
    within = (described.full_name,)
    fields = tuple(types.StructField(name, _type(known[name], name, within)) for name in names)
    parse = message_factory.GetMessageClass(described).FromString

    def decode(value: bytes) -> Any:
        row = parse(value)
        if not row.IsInitialized():
            raise ValueError(f"required and not set: {', '.join(row.FindInitializationErrors())}")
        return row

    cells = tuple(_cells(known[name]) for name in names)
    return Decoder(fields, cells, decode, (message.DecodeError, ValueError, RecursionError), None)


def _type(field: FieldDescriptor, path: str, within: tuple[str, ...]) -> types.DataType:
    if is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return types.MapType(_type(key, path, within), _type(value, f"{path}{{}}", within))
    one = _single_type(field, path, within)
    return types.ArrayType(one) if is_repeated(field) else one


def _single_type(field: FieldDescriptor, path: str, within: tuple[str, ...]) -> types.DataType:
    if field.message_type is not None:
        name = field.message_type.full_name
        if name == PROTOBUF_TIMESTAMP:
            return types.TimestampType()
        if name in within:
            raise refused(path, f"holds the message {name}, which holds itself")
        if not field.message_type.fields:
            raise refused(path, f"holds the message {name}, which has no fields")
        return types.StructType(
            [
                types.StructField(each.name, _type(each, f"{path}.{each.name}", (*within, name)))
                for each in field.message_type.fields
            ]
        )
    if field.type == FieldDescriptor.TYPE_BYTES:
        return types.BinaryType()
    return _PLAIN[field.cpp_type]


def _cells(field: FieldDescriptor) -> Cells:
    read = _read(field)

    def cells(rows: Sequence[Any]) -> list[Any]:
        return [None if row is None else read(row) for row in rows]

    return cells


def _read(field: FieldDescriptor) -> Convert:
    """From a message to the cell of one of its fields."""
    name = field.name
    if is_map(field):
        value = _convert(field.message_type.fields_by_name["value"])
        return lambda row: [(key, value(each)) for key, each in getattr(row, name).items()]
    convert = _convert(field)
    if is_repeated(field):
        return lambda row: [convert(each) for each in getattr(row, name)]
    if field.has_presence:
        return lambda row: convert(getattr(row, name)) if row.HasField(name) else None
    return lambda row: convert(getattr(row, name))


def _convert(field: FieldDescriptor) -> Convert:
    """From what Protobuf holds of a field to what Arrow takes."""
    if field.message_type is not None:
        if field.message_type.full_name == PROTOBUF_TIMESTAMP:
            return lambda time: time.seconds * 1_000_000 + time.nanos // 1000
        inner = [(each.name, _read(each)) for each in field.message_type.fields]
        return lambda row: {name: read(row) for name, read in inner}
    if field.enum_type is not None:
        names = {each.number: each.name for each in field.enum_type.values}
        return lambda number: names.get(number) or str(number)
    return _same


def _same(cell: Any) -> Any:
    return cell
