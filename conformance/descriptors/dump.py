"""Prints, as JSON, the messages, enums and services of Dapr's wire contract.

usage: dump.py FILE     an encoded FileDescriptorSet, as collect/ writes it
"""

import json
import sys

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet

def collected(path):
    with open(path, "rb") as file:
        files = FileDescriptorSet.FromString(file.read()).file
    # The worker protocol of workflows has no package.
    return [f for f in files if not f.package or f.package.startswith(("dapr.", "durabletask."))]


def scalar_or_name(field):
    if field.type_name:
        return field.type_name.removeprefix(".")
    return FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()


def camel(name):
    head, *rest = name.split("_")
    return head + "".join(part[:1].upper() + part[1:] for part in rest)


def describe(field, message, full_name):
    """One line: label, type, name, and the JSON name if it is not the default."""
    entries = {f"{full_name}.{n.name}": n for n in message.nested_type if n.options.map_entry}
    entry = entries.get(field.type_name.removeprefix("."))
    if entry:
        kind = "map<%s, %s>" % tuple(scalar_or_name(f) for f in entry.field)
    else:
        kind = scalar_or_name(field)
        if field.label == FieldDescriptorProto.LABEL_REPEATED:
            kind = "repeated " + kind
        elif field.proto3_optional:
            kind = "optional " + kind
        elif field.HasField("oneof_index"):
            kind = f"oneof {message.oneof_decl[field.oneof_index].name} {kind}"
    json_name = "" if field.json_name in ("", camel(field.name)) else f" json={field.json_name}"
    return f"{kind} {field.name}{json_name}{' deprecated' if field.options.deprecated else ''}"


def add_enum(out, prefix, enum):
    out["enums"][prefix + enum.name] = {value.name: value.number for value in enum.value}


def add_message(out, prefix, message):
    full_name = prefix + message.name
    fields = sorted(message.field, key=lambda f: f.number)
    out["messages"][full_name] = {str(f.number): describe(f, message, full_name) for f in fields}
    for enum in message.enum_type:
        add_enum(out, full_name + ".", enum)
    for nested in message.nested_type:
        if not nested.options.map_entry:
            add_message(out, full_name + ".", nested)


def add_service(out, prefix, service):
    methods = {}
    for method in service.method:
        request = ("stream " if method.client_streaming else "") + method.input_type.removeprefix(".")
        response = ("stream " if method.server_streaming else "") + method.output_type.removeprefix(".")
        methods[method.name] = f"{request} -> {response}"
    out["services"][prefix + service.name] = methods


def main():
    out = {"services": {}, "messages": {}, "enums": {}}
    for file in collected(sys.argv[1]):
        prefix = file.package + "." if file.package else ""
        for service in file.service:
            add_service(out, prefix, service)
        for message in file.message_type:
            add_message(out, prefix, message)
        for enum in file.enum_type:
            add_enum(out, prefix, enum)
    json.dump(out, sys.stdout, indent=1, sort_keys=True)
    print()


if __name__ == "__main__":
    main()
