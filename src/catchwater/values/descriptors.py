"""Protobuf's own description of a message, from a descriptor set."""

from google.protobuf import descriptor_pb2, descriptor_pool, message
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from catchwater.values.settings import BadSchema, ValueSettings

PROTOBUF_TIMESTAMP = "google.protobuf.Timestamp"


def message_of(settings: ValueSettings) -> Descriptor:
    """The message `valueMessage` of the descriptor set. Raises `BadSchema`."""
    pool = descriptor_pool.DescriptorPool()
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(settings.descriptors).file
    except message.DecodeError as error:
        raise BadSchema(
            f"valueSchema names {settings.schema}, which is no descriptor set.",
            hint="Make one: protoc --include_imports --descriptor_set_out=FILE NAME.proto",
        ) from error
    try:
        for each in files:
            pool.Add(each)
        return pool.FindMessageTypeByName(settings.message)
    except KeyError as error:
        has = [f"{each.package}.{m.name}".lstrip(".") for each in files for m in each.message_type]
        raise BadSchema(
            f"There is no message {settings.message} in {settings.schema}; it has: "
            f"{', '.join(has) or 'none'}.",
            hint="Give the full name, as package.Message, in valueMessage.",
        ) from error
    except TypeError as error:
        raise BadSchema(
            f"valueSchema names {settings.schema}, whose files do not fit together: {error}.",
            hint="Make it with protoc --include_imports.",
        ) from error


def is_map(field: FieldDescriptor) -> bool:
    """Whether it is a map."""
    kind = field.message_type
    return kind is not None and bool(kind.GetOptions().map_entry)


def is_repeated(field: FieldDescriptor) -> bool:
    """Whether it is a list."""
    # Before 6.31 there is the label only; from then on the label warns.
    known = getattr(field, "is_repeated", None)
    return bool(field.label == FieldDescriptor.LABEL_REPEATED if known is None else known)
