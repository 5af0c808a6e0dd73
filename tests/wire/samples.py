"""Messages to compare codecs with: every API, every version, the same on every run.

`samples()` yields the bytes of a message and its fields as plain JSON in the layout of Kafka's
JsonConverter classes: camelCase names, only the fields of the version, tagged ones only if they
differ from their default, bytes in base64, ids in Kafka's base64url, and only the size of records.

    python -m tests.wire.samples > samples.jsonl     one sample per line, the bytes in hexadecimal
"""

from __future__ import annotations

import base64
import json
import random
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from fencepost.base.ids import topic_id_text
from fencepost.wire.apis import API
from fencepost.wire.compile import encode
from fencepost.wire.plan import Place, Plan, default_of, plan_of
from fencepost.wire.schema import FIRST_TAG_OF_OURS, versions_of

if TYPE_CHECKING:
    from collections.abc import Iterator

SEED: Final = 20260

_INTEGERS: Final = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
}


class SampleMessage(NamedTuple):
    """One message: `kind` is "request" or "response"."""

    api: str
    version: int
    kind: str
    data: bytes
    fields: dict[str, Any]


class Choices(Protocol):
    """The source of the values of a message: a seeded generator here, Hypothesis in tests."""

    def integer(self, low: int, high: int) -> int: ...
    def text(self) -> str: ...
    def binary(self, size: int | None = None) -> bytes: ...
    def real(self) -> float: ...


class SeededValues:
    """Choices of a seeded generator that prefers edge cases."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        if self._random.random() < 0.3:
            return self._random.choice([low, high, min(max(0, low), high)])
        return self._random.randint(low, high)

    def text(self) -> str:
        length = self._random.choice([0, 1, 5, 20, 127, 128, 200])
        return "".join(self._random.choices("abcxyz-._0189 äß€漢😀", k=length))

    def binary(self, size: int | None = None) -> bytes:
        return self._random.randbytes(
            self._random.choice([0, 1, 130, 300]) if size is None else size
        )

    def real(self) -> float:
        return self._random.choice([0.0, -1.5, 1e300, 0.1])


def fill(plan: Plan, choices: Choices) -> Any:
    """A form with a chosen value in every field of the version."""
    values = {p.name: _value(plan, p, choices) for p in plan.places if p.present and is_kafkas(p)}
    return plan.form(**values)


def is_kafkas(place: Place) -> bool:
    """Whether Kafka has the field too: an oracle does not know ours."""
    return place.tag is None or place.tag < FIRST_TAG_OF_OURS


def _value(plan: Plan, place: Place, choices: Choices) -> Any:
    if place.tag is not None and choices.integer(0, 2) == 0:
        return default_of(plan.form, place.field)
    if place.nullable and choices.integer(0, 3) == 0:
        return None
    if place.is_array:
        count = (0, 1, 2, 2)[choices.integer(0, 3)]
        return [_one(plan, place, choices) for _ in range(count)]
    return _one(plan, place, choices)


def _one(plan: Plan, place: Place, choices: Choices) -> Any:
    kind = place.kind
    if kind == "struct":
        return fill(plan.inner(place), choices)
    if kind == "string":
        return choices.text()
    if kind in ("bytes", "records"):
        return choices.binary()
    if kind == "uuid":
        return choices.binary(16)
    if kind == "bool":
        return bool(choices.integer(0, 1))
    if kind == "float64":
        return choices.real()
    return choices.integer(*_bounds(place))


def _bounds(place: Place) -> tuple[int, int]:
    """The limits of kio's types for times and error codes, which are narrower than the wire."""
    if place.name.endswith("error_code"):
        return -1, 100
    if place.kind == "int64" and place.name.endswith("_ms"):
        return -1 if place.field.default == -1 else 0, 4_000_000_000_000
    return _INTEGERS[place.kind]


def as_json(form: Any, version: int) -> dict[str, Any]:
    """The fields of the version, as Kafka's JsonConverter shows them."""
    return _struct_json(plan_of(type(form), version), form)


def _struct_json(plan: Plan, form: Any) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for place in plan.places:
        value = getattr(form, place.name)
        if not place.present:
            continue
        if place.tag is not None and (value is None or _is_default(plan, place, value)):
            continue
        if place.kind == "records":
            shown[_camel(place.name) + "SizeInBytes"] = 0 if value is None else len(value)
        else:
            shown[_camel(place.name)] = _value_json(plan, place, value)
    return shown


def _is_default(plan: Plan, place: Place, value: Any) -> bool:
    if place.kind == "struct" and not place.is_array:
        return bool(value == plan.inner(place).form())
    return bool(value == default_of(plan.form, place.field))


def _value_json(plan: Plan, place: Place, value: Any) -> Any:
    if value is None:
        return None
    if place.is_array:
        item = place._replace(is_array=False)
        return [_value_json(plan, item, one) for one in value]
    if place.kind == "struct":
        return _struct_json(plan.inner(place), value)
    if place.kind == "uuid":
        return topic_id_text(value)
    if place.kind == "bytes":
        return base64.b64encode(value).decode()
    return value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def samples(per_version: int = 2, seed: int = SEED) -> Iterator[SampleMessage]:
    """Samples of all APIs in all versions that a form has."""
    for api in API.values():
        for kind, form in (("request", api.request), ("response", api.response)):
            for version in versions_of(form):
                for number in range(per_version):
                    values = SeededValues(
                        seed + 7919 * number + 104729 * version + 31 * int(api.key) + len(kind)
                    )
                    filled = fill(plan_of(form, version), values)
                    yield SampleMessage(
                        api.name, version, kind, encode(filled, version), as_json(filled, version)
                    )


if __name__ == "__main__":
    for sample in samples():
        line = sample._replace(data=sample.data.hex())._asdict()  # type: ignore[arg-type]
        sys.stdout.write(json.dumps(line) + "\n")
