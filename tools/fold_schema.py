"""Folds kio's dataclasses, one per message and version, into one form per message (wire/forms).

    python -m tools.fold_schema          writes the modules
    python -m tools.fold_schema --check  says which of them are not what would be written

kio is the schema of Apache Kafka's messages and changes rarely (for what is newer, see `NEWER`);
importing it costs a second, so it is read here, at development time. What we take from it are
names, types, versions, tags and defaults. kio turns some integers into times and error codes, some
ids into UUID or None; the forms keep what is on the wire (`read_field`).
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import importlib
import subprocess
import sys
import types
import typing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from kio.schema.index import schema_name_map
from kio.static.constants import EntityType

from fencepost.wire.apis import ApiKey
from fencepost.wire.schema import FIRST_TAG_OF_OURS

FORMS: Final = Path(__file__).parent.parent / "src/fencepost/wire/forms"

APIS: Final = {key.name.lower(): int(key) for key in ApiKey}
"""The APIs that we know, by kio's names; those of share groups only for `fencepost tap`."""

OTHERS: Final = (
    "request_header",
    "response_header",
    "consumer_protocol_subscription",
    "consumer_protocol_assignment",
)
"""Forms that are no APIs: headers, and consumers' data inside the group protocol."""

WIRE_KINDS: Final = {
    "error_code": "int16",
    "timedelta_i32": "int32",
    "timedelta_i64": "int64",
    "datetime_i64": "int64",
}

PYTHON_TYPES: Final = {
    "bool": "bool",
    "float64": "float",
    "uuid": "bytes",
    "string": "str",
    "bytes": "bytes",
}

UNSET: Final = object()

NULL_BY_DEFAULT: Final = {
    ("ListPartitionReassignmentsRequest", "topics"),
}
"""Arrays whose default is null in Kafka's schema, which kio does not record."""

RENAMED: Final = {
    ("describe_quorum", "response", "PartitionData"): "DescribedPartition",
    ("describe_quorum", "response", "TopicData"): "DescribedTopic",
}
"""Structs of a response whose name its request uses for a struct with other fields."""


OURS: Final = {
    "DescribeTransactionsResponse": (
        "TransactionState",
        (
            ("client_id", "string", FIRST_TAG_OF_OURS),
            ("client_host", "string", FIRST_TAG_OF_OURS + 1),
            ("client_connection", "string", FIRST_TAG_OF_OURS + 2),
            ("client_gone_at_ms", "int64", FIRST_TAG_OF_OURS + 3),
            ("administrator", "string", FIRST_TAG_OF_OURS + 4),
        ),
    ),
}
"""Tagged fields that fencepost adds to Kafka's messages: null, or -1 for a number, if absent.
Brokers send them to fencepost's own client only."""


@dataclass(frozen=True)
class Facet:
    """A field in one version."""

    kind: str
    nullable: bool
    tag: int | None
    default: Any


@dataclass(frozen=True)
class Addition:
    """A field that a version has and kio's newest one has not."""

    struct: str
    after: str
    """The field before it."""
    name: str
    facet: Facet
    replaces: bool = False
    """Whether the field before it ends with the version before."""


NEWER: Final = {
    "api_versions": (
        5,
        (
            Addition(
                "ApiVersionsRequest",
                "client_software_version",
                "cluster_id",
                Facet("string", nullable=True, tag=None, default=None),
            ),
            Addition(
                "ApiVersionsRequest",
                "cluster_id",
                "node_id",
                Facet("int32", nullable=False, tag=None, default=-1),
            ),
        ),
    ),
    "txn_offset_commit": (
        6,
        tuple(
            Addition(
                f"TxnOffsetCommit{entity}Topic",
                "name",
                "topic_id",
                Facet("uuid", nullable=False, tag=None, default=UNSET),
                replaces=True,
            )
            for entity in ("Request", "Response")
        ),
    ),
    "delete_groups": (
        3,
        (
            Addition(
                "DeletableGroupResult",
                "error_code",
                "error_message",
                Facet("string", nullable=True, tag=None, default=None),
            ),
        ),
    ),
}
"""Versions of Apache Kafka 4.4, which kio does not have yet: all that changes from the one before,
as `ApiMessageType` of its kafka-clients.jar shows it. tests/compat/test_wire_against_java.py
compares the bytes. A kio that has them makes the table's entries wrong, and a test says so."""


@dataclass(frozen=True)
class FoldedField:
    """A field over all its versions."""

    name: str
    facets: dict[int, Facet]
    owner_versions: tuple[int, ...]

    def the(self, attribute: str) -> Any:
        """The part that must be equal in all versions."""
        values = {repr(getattr(facet, attribute)) for facet in self.facets.values()}
        assert len(values) == 1, f"{self.name} changes its {attribute}: {values}"
        return getattr(next(iter(self.facets.values())), attribute)

    def span(self, versions: list[int]) -> str | None:
        """The versions as a range of the schema language; None if they are all of the struct's."""
        owned = self.owner_versions
        if versions == list(owned):
            return None
        assert versions == [v for v in owned if versions[0] <= v <= versions[-1]], self.name
        if versions[-1] == owned[-1]:
            return f"{versions[0]}+"
        return f"{versions[0]}-{versions[-1]}" if len(versions) > 1 else str(versions[0])


@dataclass(frozen=True)
class FoldedStruct:
    """A message or one of its structs, over all versions."""

    name: str
    fields: list[FoldedField]
    versions: tuple[int, ...]
    flexible_from: int | None
    is_message: bool


def fold_module(name: str) -> str:
    """The text of one module of forms."""
    messages = [
        fold_message(name, entity)
        for entity in (EntityType.request, EntityType.response, EntityType.header, EntityType.data)
        if entity in next(iter(schema_name_map[name].values()))
    ]
    structs = merge_structs(messages)
    text = "\n".join([heading(name, structs), *(struct_text(struct) for struct in structs)])
    return formatted(text)


def fold_message(name: str, entity: EntityType) -> list[FoldedStruct]:
    """A message and its structs, inner ones first."""
    by_version: dict[int, type[Any]] = {}
    for version, entities in sorted(schema_name_map[name].items()):
        module, _, class_name = entities[entity].partition(":")  # type: ignore[index]
        by_version[version] = getattr(importlib.import_module(module), class_name)
    found: dict[str, FoldedStruct] = {}
    fold_struct(by_version, found, is_message=True)
    message = next(reversed(found))
    if name in NEWER:
        found = {each: add_version(struct, *NEWER[name]) for each, struct in found.items()}
    if message in OURS:
        struct, ours = OURS[message]
        found[struct].fields.extend(our_field(*each, found[struct].versions) for each in ours)
    return list(found.values())


def add_version(
    struct: FoldedStruct, version: int, additions: tuple[Addition, ...]
) -> FoldedStruct:
    """The struct with one more version."""
    last = struct.versions[-1]
    assert last == version - 1, f"kio's newest version of {struct.name} is {last}"
    versions = (*struct.versions, version)
    here = [each for each in additions if each.struct == struct.name]
    ending = {each.after for each in here if each.replaces}
    fields = []
    for field in struct.fields:
        goes_on = last in field.facets and field.name not in ending
        more = {version: field.facets[last]} if goes_on else {}
        fields.append(FoldedField(field.name, field.facets | more, versions))
    for each in here:
        place = [field.name for field in fields].index(each.after) + 1
        fields.insert(place, FoldedField(each.name, {version: each.facet}, versions))
    return replace(struct, fields=fields, versions=versions)


def our_field(name: str, kind: str, tag: int, versions: tuple[int, ...]) -> FoldedField:
    is_text = kind == "string"
    facet = Facet(kind, nullable=is_text, tag=tag, default=None if is_text else -1)
    return FoldedField(name, dict.fromkeys(versions, facet), versions)


def fold_struct(
    by_version: dict[int, type[Any]], found: dict[str, FoldedStruct], *, is_message: bool = False
) -> None:
    inner: dict[str, dict[int, type[Any]]] = {}
    facets: dict[str, dict[int, Facet]] = {}
    orders: list[list[str]] = []
    for version, cls in by_version.items():
        order = []
        for field in dataclasses.fields(cls):
            name, facet, struct = read_field(field, cls)
            order.append(name)
            facets.setdefault(name, {})[version] = facet
            if struct is not None:
                inner.setdefault(form_name(struct), {})[version] = struct
        orders.append(order)
    for inner_versions in inner.values():
        fold_struct(inner_versions, found)
    versions = tuple(by_version)
    flexible = [version for version, cls in by_version.items() if cls.__flexible__]
    assert flexible == list(versions[len(versions) - len(flexible) :])
    name = form_name(next(iter(by_version.values())))
    found[name] = FoldedStruct(
        name,
        [FoldedField(each, facets[each], versions) for each in merge_orders(orders)],
        versions,
        flexible[0] if flexible else None,
        is_message,
    )


def read_field(field: Any, owner: type[Any]) -> tuple[str, Facet, type[Any] | None]:
    """A field of one of kio's classes as it is on the wire, and the struct that it contains."""
    outer, nullable = strip_none(field.type)
    is_array = typing.get_origin(outer) is tuple
    inner = typing.get_args(outer)[0] if is_array else outer
    struct = inner if dataclasses.is_dataclass(inner) else None
    assert isinstance(struct, type) or struct is None
    kafka_type = form_name(struct) if struct else field.metadata["kafka_type"]
    kind = WIRE_KINDS.get(kafka_type, kafka_type)
    if is_array and strip_none(inner)[1]:
        assert kind == "uuid", "only ids are None for what is zero on the wire"
    tag = field.metadata.get("tag")
    if kind in ("int64", "uuid") and not is_array:
        nullable = False  # kio says None for -1 and for the zero id.
    default = wire_default(field, kafka_type)
    if (owner.__name__, field.name) in NULL_BY_DEFAULT:
        default = None
    if owner.__name__ == "RequestHeader" and field.name == "client_id":
        kind = "legacy string"
    return (
        kafka_name(field.name, kafka_type),
        Facet("[]" * is_array + kind, nullable, tag, default),
        struct,
    )


def form_name(struct: type[Any]) -> str:
    """The name of the form for one of kio's classes."""
    _, _, api, _, entity = struct.__module__.split(".")
    return RENAMED.get((api, entity, struct.__name__), struct.__name__)


def strip_none(annotation: Any) -> tuple[Any, bool]:
    if not isinstance(annotation, types.UnionType):
        return annotation, False
    (kept,) = (part for part in typing.get_args(annotation) if part is not types.NoneType)
    return kept, True


def kafka_name(name: str, kafka_type: str) -> str:
    """Kafka's name: kio drops the unit of fields that it turns into a time."""
    if kafka_type.startswith("timedelta") or (
        kafka_type == "datetime_i64" and name.endswith("_time")
    ):
        return f"{name}_ms"
    return name.rstrip("_")


def wire_default(field: Any, kafka_type: str) -> Any:
    """The default on the wire; UNSET for the default of its kind."""
    value = field.default
    if value is dataclasses.MISSING or value == () or dataclasses.is_dataclass(value):
        return UNSET
    if value is None and kafka_type == "datetime_i64":
        return -1
    if kafka_type == "uuid":
        return UNSET if value is None else value.bytes
    if isinstance(value, dt.timedelta):
        return value // dt.timedelta(milliseconds=1)
    assert not isinstance(value, dt.datetime), field
    if value is None or isinstance(value, (bool, str)):
        return value
    return int(value)


def merge_orders(orders: list[list[str]]) -> list[str]:
    """One order of all fields that is consistent with the order in each version."""
    merged: list[str] = []
    for order in reversed(orders):
        position = 0
        for name in order:
            if name in merged:
                position = merged.index(name) + 1
            else:
                merged.insert(position, name)
                position += 1
    for order in orders:
        assert order == [name for name in merged if name in order], "fields change places"
    return merged


def merge_structs(messages: list[list[FoldedStruct]]) -> list[FoldedStruct]:
    """The structs of a module; those that request and response share by name must be equal."""
    found: dict[str, FoldedStruct] = {}
    for struct in (struct for structs in messages for struct in structs):
        known = found.setdefault(struct.name, struct)
        assert struct_text(known) == struct_text(struct), f"two structs are called {struct.name}"
    return list(found.values())


def heading(name: str, structs: list[FoldedStruct]) -> str:
    text = "".join(struct_text(struct) for struct in structs)
    words = [
        word
        for word in ("Records", "field", "message", "struct")
        if f"@{word}" in text or f": {word}" in text or word == "field"
    ]
    typing_only = ""
    if "Buffer" in text:
        typing_only = "if TYPE_CHECKING:\n    from fencepost.base.seams import Buffer\n"
    versions = next(struct.versions for struct in structs if struct.is_message)
    title = "".join(part.capitalize() for part in name.split("_"))
    number = f" ({APIS[name]})" if name in APIS else ""
    span = f"v{versions[0]}-{versions[-1]}" if len(versions) > 1 else f"v{versions[0]}"
    return "\n".join(
        [
            "# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.",
            f'"""{title}{number}: {span}."""\n',
            "from __future__ import annotations\n",
            *(["from typing import TYPE_CHECKING\n"] if typing_only else []),
            f"from fencepost.wire.schema import {', '.join(words)}\n",
            typing_only,
        ]
    )


def struct_text(struct: FoldedStruct) -> str:
    decorator = "@struct"
    if struct.is_message:
        flexible = (
            f', flexible="{struct.flexible_from}+"' if struct.flexible_from is not None else ""
        )
        decorator = f'@message(versions="{struct.versions[0]}-{struct.versions[-1]}"{flexible})'
    lines = [field_text(field, struct) for field in struct.fields]
    return "\n".join(["", decorator, f"class {struct.name}:", *(lines or ["    pass"]), ""])


def field_text(field: FoldedField, owner: FoldedStruct) -> str:
    kind, default = field.the("kind"), field.the("default")
    arguments = [f'"{kind.removeprefix("legacy ")}"']
    if (versions := field.span(list(field.facets))) is not None:
        arguments.append(f'versions="{versions}"')
    nullable = [version for version, facet in field.facets.items() if facet.nullable]
    if nullable:
        arguments.append(f'nullable="{field.span(nullable) or "0+"}"')
    tags = {version: facet.tag for version, facet in field.facets.items() if facet.tag is not None}
    if tags:
        (tag,) = set(tags.values())
        arguments.append(f"tag={tag}")
        if (tagged := field.span(list(tags))) != versions:
            arguments.append(f'tagged_versions="{tagged or "0+"}"')
    if default is not UNSET:
        arguments.append(f"default={default!r}")
    if kind.startswith("legacy "):
        arguments.append("compact=False")
    optional = bool(nullable) or (bool(tags) and is_struct(kind))
    annotation = python_type(kind, owner) + (" | None" if optional else "")
    return f"    {field.name}: {annotation} = field({', '.join(arguments)})"


def is_struct(kind: str) -> bool:
    return kind[:1].isupper()


def python_type(kind: str, owner: FoldedStruct) -> str:
    if kind.startswith("[]"):
        return f"list[{python_type(kind[2:], owner)}]"
    if kind == "records":
        # A message that is read is one buffer; only the broker's replies consist of several.
        return "Buffer" if owner.name == "PartitionProduceData" else "Records"
    return kind if is_struct(kind) else PYTHON_TYPES.get(kind.removeprefix("legacy "), "int")


def formatted(text: str) -> str:
    command = ["ruff", "format", "--line-length", "100", "--stdin-filename", "form.py", "-"]
    run = subprocess.run(
        [sys.executable, "-m", *command], input=text, capture_output=True, text=True, check=True
    )
    return run.stdout


def main(arguments: list[str]) -> int:
    """Writes or checks all modules; the exit code is the number of differing ones."""
    check = "--check" in arguments
    stale = []
    for name in (*APIS, *OTHERS):
        path, text = FORMS / f"{name}.py", fold_module(name)
        if path.exists() and path.read_text() == text:
            continue
        stale.append(name)
        if not check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
    print(("differ: " if check else "written: ") + (", ".join(stale) or "none"))
    return len(stale) if check else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
