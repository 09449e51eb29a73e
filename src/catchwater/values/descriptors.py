"""Protobuf's own description of a message, from a descriptor set or a registry's files."""

import base64
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor

from catchwater.values.registry import Registered
from catchwater.values.settings import BadSchema, ValueSettings

PROTOBUF_TIMESTAMP = "google.protobuf.Timestamp"
_KNOWN = (
    "any api descriptor duration empty field_mask source_context struct timestamp type wrappers"
)
OF_GOOGLE = {f"google/protobuf/{name}.proto": f"{name}_pb2" for name in _KNOWN.split()}
"""The files that come with Protobuf, and that no registry has, by the path that others import."""
_FILE = "the registry's file"


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


def message_at(found: Registered, path: Sequence[int]) -> Descriptor:
    """The message at a path of a registry's file: at each level, which of the messages there.

    Raises `BadSchema` for a file that is none, and `ValueError` for a path that leads nowhere.
    """
    file = _file_of(found)
    described: Descriptor | None = None
    for index in path:
        inner = (
            [*file.message_types_by_name.values()] if described is None else described.nested_types
        )
        if not 0 <= index < len(inner):
            raise ValueError(f"the path {list(path)} of its message's type leads nowhere")
        described = inner[index]
    assert described is not None, "a path has at least one step"
    return described


def first_message(found: Registered) -> tuple[str, bytes]:
    """The full name of the first message of a registry's file, and a descriptor set that has it.

    Raises `BadSchema`.
    """
    first = messages(found)[0]
    files: dict[str, descriptor_pb2.FileDescriptorProto] = {}
    _collect(first.file, files)
    return first.full_name, descriptor_pb2.FileDescriptorSet(
        file=files.values()
    ).SerializeToString()


def messages(found: Registered) -> list[Descriptor]:
    """The messages of a registry's file that lie in no other; there is one at least.

    Raises `BadSchema`.
    """
    described = [*_file_of(found).message_types_by_name.values()]
    if not described:
        raise BadSchema("The Protobuf file of the registry has no message.")
    return described


def registered(descriptors: bytes) -> Registered:
    """A descriptor set as a registry would give it: its last file, and those that this needs.

    Raises `BadSchema`.
    """
    try:
        files = [*descriptor_pb2.FileDescriptorSet.FromString(descriptors).file]
    except message.DecodeError:
        files = []
    if not files:
        raise BadSchema(
            "It is no descriptor set.",
            hint="Make one: protoc --include_imports --descriptor_set_out=FILE NAME.proto",
        )
    texts = [base64.b64encode(each.SerializeToString()).decode() for each in files]
    others = [n for n, each in enumerate(files[:-1]) if each.name not in OF_GOOGLE]
    return Registered(
        "PROTOBUF", texts[-1], tuple(texts[n] for n in others), tuple(files[n].name for n in others)
    )


def _collect(file: FileDescriptor, files: dict[str, descriptor_pb2.FileDescriptorProto]) -> None:
    """A file, and before it those that it imports, by their names."""
    for each in file.dependencies:
        _collect(each, files)
    files.setdefault(file.name, descriptor_pb2.FileDescriptorProto.FromString(file.serialized_pb))


def _file_of(found: Registered) -> FileDescriptor:
    """Raises `BadSchema`."""
    pool = descriptor_pool.DescriptorPool()
    try:
        for name, text in zip((*found.names, _FILE), (*found.needs, found.text), strict=True):
            _add(pool, name, descriptor_pb2.FileDescriptorProto.FromString(_decoded(text)))
        return pool.FindFileByName(_FILE)
    except (message.DecodeError, ValueError) as error:
        raise BadSchema(
            f"The schema registry does not give its Protobuf schema as a serialized file: {error}.",
            hint="Name a descriptor set and its message: valueSchema and valueMessage.",
        ) from error
    except (TypeError, KeyError) as error:
        raise BadSchema(f"The Protobuf files of the registry do not fit: {error}.") from error


def path_of(described: Descriptor) -> tuple[int, ...]:
    """Where a message stands in its file, as `message_at` takes it."""
    within = described.containing_type
    around = (
        described.file.message_types_by_name.values() if within is None else within.nested_types
    )
    place = [each.full_name for each in around].index(described.full_name)
    return (place,) if within is None else (*path_of(within), place)


def _decoded(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _add(
    pool: descriptor_pool.DescriptorPool, name: str, file: descriptor_pb2.FileDescriptorProto
) -> None:
    """Add a file by the name that others import, and before it what comes with Protobuf."""
    for each in file.dependency:
        if each in OF_GOOGLE:
            module = importlib.import_module(f"google.protobuf.{OF_GOOGLE[each]}")
            _add(
                pool,
                each,
                descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb),
            )
    file.name = name
    pool.Add(file)


def is_map(field: FieldDescriptor) -> bool:
    """Whether it is a map."""
    kind = field.message_type
    return kind is not None and bool(kind.GetOptions().map_entry)


def is_repeated(field: FieldDescriptor) -> bool:
    """Whether it is a list."""
    # Before 6.31 there is the label only; from then on the label warns.
    known = getattr(field, "is_repeated", None)
    return bool(field.label == FieldDescriptor.LABEL_REPEATED if known is None else known)


def is_required(field: FieldDescriptor) -> bool:
    """Whether a message has to have it (proto2)."""
    known = getattr(field, "is_required", None)
    return bool(field.label == FieldDescriptor.LABEL_REQUIRED if known is None else known)


def encoded(described: Descriptor, values: Mapping[str, Any]) -> bytes:
    """A message with these fields, of inner messages by their own; an enum by its name."""
    row = _filled(message_factory.GetMessageClass(described)(), values)
    return bytes(row.SerializePartialToString())


def _filled(row: Any, values: Mapping[str, Any]) -> Any:
    for name, value in values.items():
        field, place = row.DESCRIPTOR.fields_by_name[name], getattr(row, name)
        if is_map(field):
            for key, each in value.items():
                if field.message_type.fields_by_name["value"].message_type is not None:
                    _put(place[key], each)
                else:
                    place[key] = each
        elif field.message_type is None:
            if is_repeated(field):
                place.extend(value)
            else:
                setattr(row, name, value)
        elif is_repeated(field):
            for each in value:
                _put(place.add(), each)
        else:
            place.SetInParent()
            _put(place, value)
    return row


def _put(row: Any, value: Any) -> None:
    if row.DESCRIPTOR.full_name == PROTOBUF_TIMESTAMP:
        row.FromDatetime(value)
    else:
        _filled(row, value)
