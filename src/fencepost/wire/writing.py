"""Writes the source of a writer: one straight function for a form and a version.

A writer takes the form, a bytearray and a list of chunks; it returns the bytearray in which it
ended. Most writers end in the one they began with. Where a `records` field is large, what stands
before it and the records themselves go to the list, and writing goes on in a new bytearray: so
records are sent from where they lie. Without a list (None) everything is copied into the bytearray.

Neighbouring fixed fields, the length of what follows them and an empty set of tags are packed in
one call. A field that the version does not have is left out in silence, whatever it holds. A value
that a field cannot hold (None where null is not allowed, a number too large) is a bug of ours: an
AssertionError.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from fencepost.base.seams import Buffer
from fencepost.wire.plan import Place, Plan, default_of
from fencepost.wire.schema import FIXED, Records

SMALL_RECORDS_BYTES: Final = 4096
"""Up to this size records are copied: another buffer costs the socket more than a short copy
does."""

_KEPT_RUNS: Final = 256

Writer = Callable[[Any, bytearray, list[Buffer] | None], bytearray]


def varint(value: int) -> bytes:
    """An unsigned varint."""
    if value < 0x80:
        return value.to_bytes(1, "big")
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def uuid16(value: bytes) -> bytes:
    """An id as it is. The struct module would fill up or cut one of another length in silence."""
    assert len(value) == 16, f"an id has 16 bytes, not {len(value)}"
    return value


def records_size(records: Records) -> int:
    """The bytes of a records field, one buffer or several."""
    if isinstance(records, (bytes, bytearray, memoryview)):
        return len(records)
    return sum(map(len, records))


def put_records(
    records: Records, size: int, out: bytearray, chunks: list[Buffer] | None
) -> bytearray:
    """Copies records that are small, else hands them on as chunks of their own."""
    pieces = [records] if isinstance(records, (bytes, bytearray, memoryview)) else records
    if size <= SMALL_RECORDS_BYTES or chunks is None:
        for piece in pieces:
            out += piece
        return out
    chunks.append(out)
    chunks.extend(pieces)
    return bytearray()


class _Runs(dict[int, Callable[..., bytes]]):
    """Packers of n equal fixed items. Short runs are kept; a long one is made for its one use."""

    def __init__(self, code: str) -> None:
        self.code = code

    def __missing__(self, count: int) -> Callable[..., bytes]:
        body = self.code * count if len(self.code) > 1 else f"{count}{self.code}"
        pack = struct.Struct(">" + body).pack
        if count <= _KEPT_RUNS:
            self[count] = pack
        return pack


_RUNS: Final = {kind: _Runs(code) for kind, code in FIXED.items()}


class WriterSource:
    """The text of one writer as it grows."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.title = f"{plan.form.__name__} v{plan.version}"
        self.lines: list[str] = []
        self.depth = 2
        self.counter = 0
        self.out = "out"
        self.pending: list[tuple[str, str]] = []
        self.scope: dict[str, Any] = {
            "StructError": struct.error,
            "varint": varint,
            "uuid16": uuid16,
            "records_size": records_size,
            "put_records": put_records,
        }

    def function(self) -> Writer:
        """Compiles the writer."""
        exec(compile(self.source(), f"<writer of {self.title}>", "exec"), self.scope)  # noqa: S102 - our own text
        write: Writer = self.scope["write"]
        return write

    def source(self) -> str:
        self.struct(self.plan, "form")
        self.flush()
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

    # What every part is made of.

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def name(self, stem: str) -> str:
        self.counter += 1
        return f"{stem}{self.counter}"

    def give(self, code: str, value: str) -> None:
        """A fixed value is due: it waits for its neighbours. The code "x" is a zero byte."""
        self.pending.append((code, value))

    def flush(self) -> None:
        """Writes what waits, in one call."""
        if self.pending:
            self.emit(self.packed(self.pending))
            self.pending.clear()

    def packed(self, values: list[tuple[str, str]]) -> str:
        codes = "".join(code for code, _ in values)
        if codes == "x":
            return f"{self.out}.append(0)"
        if codes == "B":
            return f"{self.out}.append({values[0][1]})"
        bound = "p_" + codes.replace("?", "t")
        self.scope[bound] = struct.Struct(">" + codes).pack
        arguments = ", ".join(value for code, value in values if code != "x")
        return f"{self.out} += {bound}({arguments})"

    def size(self, place: Place, size: str) -> None:
        """Writes what waits and the length or count of what comes: size is a local name."""
        if place.prefix != "B":
            self.give(place.prefix, size)
            self.flush()
            return
        # One byte holds it nearly always, and that byte travels with its neighbours.
        short = self.packed([*self.pending, ("B", f"{size} + 1")])
        self.emit(f"if {size} < 127:")
        self.emit(f"    {short}")
        self.emit("else:")
        self.depth += 1
        self.flush()
        self.emit(f"{self.out} += varint({size} + 1)")
        self.depth -= 1

    def null(self, place: Place) -> None:
        self.give("x" if place.prefix == "B" else place.prefix, "-1")
        self.flush()

    # The parts.

    def struct(self, plan: Plan, source: str) -> None:
        for place in plan.ordered:
            self.value(plan, place, f"{source}.{place.name}")
        if not plan.flexible:
            return
        if plan.tagged:
            self.tags(plan, source)
        else:
            self.give("x", "0")

    def value(self, plan: Plan, place: Place, source: str) -> None:
        if place.is_fixed:
            self.give(FIXED[place.kind], f"uuid16({source})" if place.kind == "uuid" else source)
        elif place.nullable:
            self.nullable(plan, place, source)
        elif place.kind == "struct" and not place.is_array:
            inner = self.name("f")
            self.emit(f"{inner} = {source}")
            self.struct(plan.inner(place), inner)
        else:
            value = self.name("v")
            self.emit(f"{value} = {source}")
            self.body(plan, place, value)

    def nullable(self, plan: Plan, place: Place, source: str) -> None:
        value = self.name("v")
        self.emit(f"{value} = {source}")
        waiting = list(self.pending)
        self.emit(f"if {value} is None:")
        self.depth += 1
        self.null(place)
        self.depth -= 1
        self.emit("else:")
        self.depth += 1
        self.pending = waiting
        self.body(plan, place, value)
        self.flush()
        self.depth -= 1

    def body(self, plan: Plan, place: Place, value: str) -> None:
        if place.is_array:
            self.array(plan, place, value)
        elif place.kind == "struct":
            self.give("b", "1")
            self.struct(plan.inner(place), value)
        elif place.kind == "records":
            size = self.name("n")
            self.emit(f"{size} = records_size({value})")
            self.size(place, size)
            self.emit(f"{self.out} = put_records({value}, {size}, {self.out}, chunks)")
        else:
            self.text(place, value)

    def text(self, place: Place, value: str) -> None:
        if place.kind == "string":
            self.emit(f"{value} = {value}.encode()")
        size = self.name("n")
        self.emit(f"{size} = len({value})")
        self.size(place, size)
        self.emit(f"{self.out} += {value}")

    def array(self, plan: Plan, place: Place, value: str) -> None:
        size = self.name("n")
        self.emit(f"{size} = len({value})")
        self.size(place, size)
        if place.kind in FIXED:
            runs = f"runs_{place.kind}"
            self.scope[runs] = _RUNS[place.kind]
            items = f"map(uuid16, {value})" if place.kind == "uuid" else value
            self.emit(f"{self.out} += {runs}[{size}](*{items})")
            return
        item = self.name("f")
        self.emit(f"for {item} in {value}:")
        self.depth += 1
        if place.kind == "struct":
            self.struct(plan.inner(place), item)
        else:
            self.text(place._replace(is_array=False), item)
        self.flush()
        self.depth -= 1

    def tags(self, plan: Plan, source: str) -> None:
        """Only what differs from its default is written, so nearly always there is nothing."""
        self.flush()
        usual = " and ".join(self.is_default(plan, place, source) for place in plan.tagged)
        self.emit(f"if {usual}:")
        self.emit(f"    {self.out}.append(0)")
        self.emit("else:")
        self.depth += 1
        count, extra = self.name("t"), self.name("x")
        self.emit(f"{count} = 0")
        self.emit(f"{extra} = bytearray()")
        for place in plan.tagged:
            self.emit(f"if not ({self.is_default(plan, place, source)}):")
            self.depth += 1
            self.tagged_value(plan, place, source, extra)
            self.emit(f"{count} += 1")
            self.depth -= 1
        self.emit(f"{self.out} += varint({count})")
        self.emit(f"{self.out} += {extra}")
        self.depth -= 1

    def is_default(self, plan: Plan, place: Place, source: str) -> str:
        value = default_of(plan.form, place.field)
        if value is None and place.kind == "struct" and not place.nullable and not place.is_array:
            bound = f"default_{plan.form.__name__}_{place.name}"
            self.scope[bound] = plan.inner(place).form()
            return f"({source}.{place.name} is None or {source}.{place.name} == {bound})"
        if value is None:
            return f"{source}.{place.name} is None"
        return f"{source}.{place.name} == {value!r}"

    def tagged_value(self, plan: Plan, place: Place, source: str, extra: str) -> None:
        outer, self.out = self.out, self.name("body")
        self.emit(f"{self.out} = bytearray()")
        self.value(plan, place, f"{source}.{place.name}")
        self.flush()
        body, self.out = self.out, outer
        self.emit(f"{extra} += {varint(place.tag or 0)!r}")
        self.emit(f"{extra} += varint(len({body}))")
        self.emit(f"{extra} += {body}")
