"""kio's version of our forms, for comparison."""

from __future__ import annotations

import dataclasses
import datetime as dt
import importlib
import io
import typing
import uuid
from typing import Any

from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from fencepost.wire.schema import versions_of
from tools.fold_schema import APIS, NEWER, OTHERS, kafka_name, strip_none

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
MILLISECOND = dt.timedelta(milliseconds=1)
ENTITIES = (EntityType.request, EntityType.response, EntityType.header, EntityType.data)


def messages() -> list[tuple[str, EntityType, type[Any]]]:
    """Every message that we have: kio's module name, its kind, and our form."""
    found = []
    for name in (*APIS, *OTHERS):
        module = importlib.import_module(f"fencepost.wire.forms.{name}")
        newest = schema_name_map[name][max(schema_name_map[name])]
        for entity in ENTITIES:
            if entity in newest:
                class_name = newest[entity].partition(":")[2]  # type: ignore[index]
                found.append((name, entity, getattr(module, class_name)))
    return found


def kio_versions(name: str, form: type[Any]) -> list[int]:
    """The versions of our form that kio has; tests/compat compares the others with Kafka's."""
    newer = {NEWER[name][0]} if name in NEWER else set()
    return [version for version in versions_of(form) if version not in newer]


def kio_class(name: str, version: int, entity: EntityType) -> type[Any]:
    path = schema_name_map[name][version][entity]  # type: ignore[index]
    module, _, class_name = path.partition(":")
    found: type[Any] = getattr(importlib.import_module(module), class_name)
    return found


def to_kio(form: Any, cls: type[Any]) -> Any:
    """Our form as a kio entity."""
    values = {}
    for field in dataclasses.fields(cls):
        kafka_type = field.metadata.get("kafka_type", "")
        value = getattr(form, kafka_name(field.name, kafka_type))
        values[field.name] = _to_kio_value(value, field.type, kafka_type)
    return cls(**values)


def _to_kio_value(value: Any, annotation: Any, kafka_type: str) -> Any:
    inner, optional = strip_none(annotation)
    if typing.get_origin(inner) is tuple:
        if value is None:
            return None
        item = typing.get_args(inner)[0]
        return tuple(_to_kio_value(one, item, kafka_type) for one in value)
    if dataclasses.is_dataclass(inner):
        if value is None:  # For kio an absent tagged struct is one of defaults.
            return None if optional else inner()  # type: ignore[operator]
        return to_kio(value, inner)  # type: ignore[arg-type]
    return _to_kio_scalar(value, kafka_type, optional)


def _to_kio_scalar(value: Any, kafka_type: str, optional: bool) -> Any:
    if kafka_type == "error_code":
        return KioErrorCode(value)
    if kafka_type.startswith("timedelta"):
        return value * MILLISECOND
    if kafka_type == "datetime_i64":
        return None if optional and value == -1 else EPOCH + value * MILLISECOND
    if kafka_type == "uuid":
        return None if value == bytes(16) else uuid.UUID(bytes=value)
    return value


def kio_bytes(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def kio_read(cls: type[Any], data: bytes) -> tuple[Any, int]:
    entity, size = entity_reader(cls)(data, 0)
    return entity, size
