"""Goal: our forms and codecs and kio's agree on the bytes of every message and version.

Method: the structure of each form is compared with kio's dataclass of that version, field by field;
then each reads messages that the other wrote: seeded ones in every version, and ones from
Hypothesis in versions that it picks.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fencepost.wire.compile import encode, reader
from fencepost.wire.plan import Plan, plan_of
from fencepost.wire.schema import FIXED
from tests.halves import examples
from tests.wire.kio_oracle import kio_bytes, kio_class, kio_read, kio_versions, messages, to_kio
from tests.wire.samples import SeededValues, fill, is_kafkas
from tools.fold_schema import WIRE_KINDS, form_name, kafka_name, strip_none

if TYPE_CHECKING:
    from kio.static.constants import EntityType

MESSAGES = [pytest.param(*message, id=message[2].__name__) for message in messages()]


class Drawn:
    """Choices made by Hypothesis."""

    def __init__(self, data: st.DataObject) -> None:
        self._draw = data.draw

    def integer(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))

    def text(self) -> str:
        return self._draw(st.text(max_size=200))

    def binary(self, size: int | None = None) -> bytes:
        least, most = (0, 300) if size is None else (size, size)
        return self._draw(st.binary(min_size=least, max_size=most))

    def real(self) -> float:
        return self._draw(st.floats(allow_nan=False, allow_infinity=False))


@pytest.mark.parametrize(("name", "entity", "form"), MESSAGES)
def test_a_form_has_the_fields_of_kios_class_in_every_version(
    name: str, entity: EntityType, form: type[Any]
) -> None:
    from kio.schema.index import schema_name_map

    assert kio_versions(name, form) == sorted(schema_name_map[name])
    for version in kio_versions(name, form):
        cls = kio_class(name, version, entity)
        plan = plan_of(form, version)
        assert plan.flexible == cls.__flexible__
        assert_same_fields(plan, cls)


def assert_same_fields(plan: Plan, cls: type[Any]) -> None:
    present = [place for place in plan.places if place.present and is_kafkas(place)]
    theirs = dataclasses.fields(cls)
    assert [p.name for p in present] == [
        kafka_name(f.name, f.metadata.get("kafka_type", "")) for f in theirs
    ]
    for place, field in zip(present, theirs, strict=True):
        assert place.tag == field.metadata.get("tag"), place
        kafka_type = field.metadata.get("kafka_type", "struct")
        assert place.kind == WIRE_KINDS.get(kafka_type, kafka_type), place
        inner, optional = strip_none(field.type)
        assert place.is_array == (getattr(inner, "__origin__", None) is tuple), place
        if place.is_array or place.kind not in FIXED:
            assert place.nullable == optional, place
        if place.kind == "struct":
            struct = inner.__args__[0] if place.is_array else inner
            assert place.struct is not None
            assert place.struct.__name__ == form_name(struct)
            assert_same_fields(plan.inner(place), struct)


def assert_same_bytes(name: str, entity: EntityType, form: Any, version: int) -> None:
    cls = kio_class(name, version, entity)
    theirs = to_kio(form, cls)
    data = encode(form, version)
    assert data == kio_bytes(theirs)
    assert kio_read(cls, data) == (theirs, len(data))
    again, position = reader(type(form), version)(memoryview(bytearray(data)), 0)
    assert position == len(data)
    assert encode(again, version) == data
    assert to_kio(again, cls) == theirs


@pytest.mark.parametrize(("name", "entity", "form"), MESSAGES)
def test_both_write_the_same_bytes_in_every_version(
    name: str, entity: EntityType, form: type[Any]
) -> None:
    for version in kio_versions(name, form):
        for seed in range(4):
            filled = fill(plan_of(form, version), SeededValues(seed * 1000 + version))
            assert_same_bytes(name, entity, filled, version)


@pytest.mark.parametrize(("name", "entity", "form"), MESSAGES)
def test_both_write_the_same_bytes_for_a_form_of_defaults(
    name: str, entity: EntityType, form: type[Any]
) -> None:
    for version in kio_versions(name, form):
        # If Kafka has no null default, a form of defaults can be written as it is.
        assert_same_bytes(name, entity, form(), version)


@pytest.mark.parametrize(("name", "entity", "form"), MESSAGES)
@settings(max_examples=examples(8), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_both_write_the_same_bytes_for_any_message(
    name: str, entity: EntityType, form: type[Any], data: st.DataObject
) -> None:
    version = data.draw(st.sampled_from(kio_versions(name, form)))
    assert_same_bytes(name, entity, fill(plan_of(form, version), Drawn(data)), version)
