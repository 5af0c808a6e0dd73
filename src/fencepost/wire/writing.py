"""Generates writers: one straight-line function for a form and a version.

A writer takes the form, a bytearray and a list of chunks, and returns the bytearray in which it
ended, usually the same. If a `records` field is large, the bytes before it and the records go to
the list, and writing continues in a new bytearray, so records are sent without a copy. Without a
list (None) everything is copied into the bytearray.

Neighbouring fixed fields, the length of the next value and an empty set of tags are packed in one
call. A field that the version does not have is silently left out. A value that a field cannot hold
(None if null is not allowed, a number too large) is a bug of ours: an AssertionError.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from fencepost.base.seams import Buffer
from fencepost.wire.plan import Place, Plan, Runs, Source, default_of
from fencepost.wire.schema import FIXED, Records

SMALL_RECORDS_BYTES: Final = 4096
"""Records up to this size are copied: another buffer costs the socket more than a short copy."""

Writer = Callable[[Any, bytearray, list[Buffer] | None], bytearray]


def varint(value: int) -> bytes:
    """Encode an unsigned varint."""
    if value < 0x80:
        return value.to_bytes(1, "big")
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def uuid16(value: bytes) -> bytes:
    """Check the length of an id; the struct module would pad or cut it silently."""
    assert len(value) == 16, f"an id has 16 bytes, not {len(value)}"
    return value


def records_size(records: Records) -> int:
    """The size of a records field, one buffer or several."""
    if isinstance(records, (bytes, bytearray, memoryview)):
        return len(records)
    return sum(map(len, records))


def put_records(
    records: Records, size: int, out: bytearray, chunks: list[Buffer] | None
) -> bytearray:
    """Copy small records; append large ones to the chunks."""
    pieces = [records] if isinstance(records, (bytes, bytearray, memoryview)) else records
    if size <= SMALL_RECORDS_BYTES or chunks is None:
        for piece in pieces:
            out += piece
        return out
    chunks.append(out)
    chunks.extend(pieces)
    return bytearray()


_RUNS: Final = {kind: Runs(code, "pack") for kind, code in FIXED.items()}


class WriterSource(Source):
    """Generates the source of one writer."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(
            plan,
            {
                "StructError": struct.error,
                "varint": varint,
                "uuid16": uuid16,
                "records_size": records_size,
                "put_records": put_records,
            },
        )
        self.out = "out"

    def function(self) -> Writer:
        """Compile the writer."""
        exec(compile(self._source(), f"<writer of {self.title}>", "exec"), self.scope)  # noqa: S102
        write: Writer = self.scope["write"]
        return write

    def _source(self) -> str:
        self._struct(self.plan, "form")
        self._flush()
        return "\n".join(
            [
                "def write(form, out, chunks=None):",
                "    try:",
                *self.lines,
                "        return out",
                "    except (StructError, AttributeError, TypeError, ValueError) as problem:",
                f"        raise AssertionError('{self.title} cannot be written: %s in %.500r'",
                "            % (problem, form)) from problem",
            ]
        )

    # Building blocks.

    def _give(self, code: str, value: str) -> None:
        """Add a fixed value, which waits for its neighbours. The code "x" is a zero byte."""
        self.pending.append((code, value))

    def _flush(self) -> None:
        """Emit the waiting values in one call."""
        if self.pending:
            self._emit(self._packed(self.pending))
            self.pending.clear()

    def _packed(self, values: list[tuple[str, str]]) -> str:
        codes = "".join(code for code, _ in values)
        if codes == "x":
            return f"{self.out}.append(0)"
        if codes == "B":
            return f"{self.out}.append({values[0][1]})"
        bound = "p_" + codes.replace("?", "t")
        self.scope[bound] = struct.Struct(">" + codes).pack
        arguments = ", ".join(value for code, value in values if code != "x")
        return f"{self.out} += {bound}({arguments})"

    def _size(self, place: Place, size: str) -> None:
        """Emit the waiting values and a length or count, which is in the local `size`."""
        if place.prefix != "B":
            self._give(place.prefix, size)
            self._flush()
            return
        # One byte is nearly always enough, and it is packed with its neighbours.
        short = self._packed([*self.pending, ("B", f"{size} + 1")])
        self._emit(f"if {size} < 127:")
        self._emit(f"    {short}")
        self._emit("else:")
        self.depth += 1
        self._flush()
        self._emit(f"{self.out} += varint({size} + 1)")
        self.depth -= 1

    def _null(self, place: Place) -> None:
        self._give("x" if place.prefix == "B" else place.prefix, "-1")
        self._flush()

    # Kinds of values.

    def _struct(self, plan: Plan, source: str) -> None:
        for place in plan.ordered:
            self._value(plan, place, f"{source}.{place.name}")
        if not plan.flexible:
            return
        if plan.tagged:
            self._tags(plan, source)
        else:
            self._give("x", "0")

    def _value(self, plan: Plan, place: Place, source: str) -> None:
        if place.is_fixed:
            self._give(FIXED[place.kind], f"uuid16({source})" if place.kind == "uuid" else source)
        elif place.nullable:
            self._nullable(plan, place, source)
        elif place.kind == "struct" and not place.is_array:
            inner = self._name("f")
            self._emit(f"{inner} = {source}")
            self._struct(plan.inner(place), inner)
        else:
            value = self._name("v")
            self._emit(f"{value} = {source}")
            self._body(plan, place, value)

    def _nullable(self, plan: Plan, place: Place, source: str) -> None:
        value = self._name("v")
        self._emit(f"{value} = {source}")
        waiting = list(self.pending)
        self._emit(f"if {value} is None:")
        self.depth += 1
        self._null(place)
        self.depth -= 1
        self._emit("else:")
        self.depth += 1
        self.pending = waiting
        self._body(plan, place, value)
        self._flush()
        self.depth -= 1

    def _body(self, plan: Plan, place: Place, value: str) -> None:
        if place.is_array:
            self._array(plan, place, value)
        elif place.kind == "struct":
            self._give("b", "1")
            self._struct(plan.inner(place), value)
        elif place.kind == "records":
            size = self._name("n")
            self._emit(f"{size} = records_size({value})")
            self._size(place, size)
            self._emit(f"{self.out} = put_records({value}, {size}, {self.out}, chunks)")
        else:
            self._text(place, value)

    def _text(self, place: Place, value: str) -> None:
        if place.kind == "string":
            self._emit(f"{value} = {value}.encode()")
        size = self._name("n")
        self._emit(f"{size} = len({value})")
        self._size(place, size)
        self._emit(f"{self.out} += {value}")

    def _array(self, plan: Plan, place: Place, value: str) -> None:
        size = self._name("n")
        self._emit(f"{size} = len({value})")
        self._size(place, size)
        if place.kind in FIXED:
            runs = f"runs_{place.kind}"
            self.scope[runs] = _RUNS[place.kind]
            items = f"map(uuid16, {value})" if place.kind == "uuid" else value
            self._emit(f"{self.out} += {runs}[{size}](*{items})")
            return
        item = self._name("f")
        self._emit(f"for {item} in {value}:")
        self.depth += 1
        if place.kind == "struct":
            self._struct(plan.inner(place), item)
        else:
            self._text(place._replace(is_array=False), item)
        self._flush()
        self.depth -= 1

    def _tags(self, plan: Plan, source: str) -> None:
        """Emit the tagged fields that differ from their defaults, usually none."""
        self._flush()
        usual = " and ".join(self._is_default(plan, place, source) for place in plan.tagged)
        self._emit(f"if {usual}:")
        self._emit(f"    {self.out}.append(0)")
        self._emit("else:")
        self.depth += 1
        count, extra = self._name("t"), self._name("x")
        self._emit(f"{count} = 0")
        self._emit(f"{extra} = bytearray()")
        for place in plan.tagged:
            self._emit(f"if not ({self._is_default(plan, place, source)}):")
            self.depth += 1
            self._tagged_value(plan, place, source, extra)
            self._emit(f"{count} += 1")
            self.depth -= 1
        self._emit(f"{self.out} += varint({count})")
        self._emit(f"{self.out} += {extra}")
        self.depth -= 1

    def _is_default(self, plan: Plan, place: Place, source: str) -> str:
        value = default_of(plan.form, place.field)
        if value is None and place.kind == "struct" and not place.nullable and not place.is_array:
            bound = f"default_{plan.form.__name__}_{place.name}"
            self.scope[bound] = plan.inner(place).form()
            return f"({source}.{place.name} is None or {source}.{place.name} == {bound})"
        if value is None:
            return f"{source}.{place.name} is None"
        return f"{source}.{place.name} == {value!r}"

    def _tagged_value(self, plan: Plan, place: Place, source: str, extra: str) -> None:
        outer, self.out = self.out, self._name("body")
        self._emit(f"{self.out} = bytearray()")
        self._value(plan, place, f"{source}.{place.name}")
        self._flush()
        body, self.out = self.out, outer
        self._emit(f"{extra} += {varint(place.tag or 0)!r}")
        self._emit(f"{extra} += varint(len({body}))")
        self._emit(f"{extra} += {body}")
