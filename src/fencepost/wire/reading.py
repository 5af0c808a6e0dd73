"""Generates readers: one straight-line function for a form and a version.

A reader takes a buffer and a position and returns the form and the position after it. Why it is
fast:

- One `unpack_from` reads neighbouring fields of fixed size, together with the length of the string
  or array that follows them and the count of tags (both nearly always one byte in flexible
  versions; `finish_varint` reads the rest of a longer varint).
- Nested structs are inlined, not called; a form is built by `object.__new__` and attribute stores.
- A message without records is read from one bytes object, copied if needed: slices of bytes decode
  faster than slices of a memoryview.

Why it is safe: a length is compared with the remaining bytes before it is used, and so is a count
(each item has a minimum size). `MAX_ARRAY_ITEMS` limits each array of numbers, and the total items
of all other arrays in a message, which cost at least an object each. `MAX_REQUEST_ITEMS` limits the
items of all arrays of a request together. One handler around the body turns an overrun in
`unpack_from` or an index into a WireError. Bytes after the message are ignored, as in Kafka.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, NoReturn

from fencepost.base.failures import WireError
from fencepost.base.limits import MAX_ARRAY_ITEMS, MAX_REQUEST_ITEMS, MAX_STRING_BYTES
from fencepost.base.seams import Buffer
from fencepost.wire.plan import (
    Place,
    Plan,
    Runs,
    Source,
    default_of,
    holds_records,
    item_size,
)
from fencepost.wire.schema import FIXED, UNSET


def finish_varint(data: Buffer, position: int, first: int) -> tuple[int, int]:
    """Read the rest of an unsigned varint of more than one byte."""
    value = first & 0x7F
    for shift in (7, 14, 21, 28):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise WireError("a varint is longer than five bytes")


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    """Read an unsigned varint; IndexError at the end of the bytes."""
    first = data[position]
    return (first, position + 1) if first < 0x80 else finish_varint(data, position + 1, first)


def skip_tags(data: Buffer, position: int, count: int, limit: int) -> int:
    """Skip unknown tagged fields, which a newer peer may send."""
    if count > 127:
        count, position = finish_varint(data, position, count)
    for _ in range(count):
        _, position = read_varint(data, position)
        size, position = read_varint(data, position)
        position += size
        if position > limit:
            raise WireError(f"a tagged field claims {size} bytes, which were not received")
    return position


_RUNS: Final = {kind: Runs(code, "unpack_from") for kind, code in FIXED.items()}


class ReaderSource(Source):
    """Generates the source of one reader."""

    def __init__(self, plan: Plan, *, is_request: bool = False) -> None:
        super().__init__(
            plan,
            {
                "WireError": WireError,
                "StructError": struct.error,
                "finish_varint": finish_varint,
                "read_varint": read_varint,
                "skip_tags": skip_tags,
                "new": object.__new__,
            },
        )
        self.from_view = holds_records(plan)
        self.is_request = is_request

    def function(self) -> Callable[[Buffer, int], tuple[Any, int]]:
        """Compile the reader."""
        exec(compile(self._source(), f"<reader of {self.title}>", "exec"), self.scope)  # noqa: S102
        read: Callable[[Buffer, int], tuple[Any, int]] = self.scope["read"]
        return read

    def _source(self) -> str:
        root = self._name("o")
        self._struct(self.plan, root, ())
        self._flush()
        wanted = "memoryview" if self.from_view else "bytes"
        return "\n".join(
            [
                "def read(data, p=0):",
                f"    if type(data) is not {wanted}:",
                f"        data = {wanted}(data)",
                "    limit = len(data)",
                f"    room = {MAX_REQUEST_ITEMS if self.is_request else MAX_ARRAY_ITEMS}",
                "    try:",
                *self.lines,
                f"        return {root}, p",
                "    except (StructError, IndexError):",
                f"        raise WireError('{self.title} is cut short') from None",
                "    except UnicodeDecodeError:",
                f"        raise WireError('{self.title} has a string that is not UTF-8') from None",
            ]
        )

    # Building blocks.

    def _read_fixed(self, code: str, target: str) -> None:
        """Read a fixed value, together with its neighbours."""
        self.pending.append((code, target))

    def _flush(self) -> None:
        """Emit the waiting values in one call."""
        if not self.pending:
            return
        codes = "".join(code for code, _ in self.pending)
        targets = ", ".join(target for _, target in self.pending)
        self.pending.clear()
        if codes == "B":
            self._emit(f"{targets} = data[p]")
            self._emit("p += 1")
            return
        unpacker = struct.Struct(">" + codes)
        bound = "u_" + codes.replace("?", "t")
        self.scope[bound] = unpacker.unpack_from
        self._emit(f"({targets},) = {bound}(data, p)")
        self._emit(f"p += {unpacker.size}")

    def _fail(self, path: tuple[str, ...], complaint: str) -> None:
        sentence = f"{self.title}: {'.'.join(path)} {complaint}"
        self._emit(f"raise WireError({sentence!r})")

    # Kinds of values.

    def _struct(self, plan: Plan, target: str, path: tuple[str, ...]) -> None:
        bound = f"C_{plan.form.__name__}"
        self.scope[bound] = plan.form
        self._emit(f"{target} = new({bound})")
        for place in plan.places:
            if not place.present or place.tag is not None:
                self._default(plan, place, f"{target}.{place.name}")
        for place in plan.ordered:
            self._value(plan, place, f"{target}.{place.name}", (*path, place.name))
        if plan.flexible:
            self._tags(plan, target, path)

    def _default(self, plan: Plan, place: Place, target: str) -> None:
        value = place.field.default_value()
        if value is not UNSET:
            self._emit(f"{target} = {value!r}")
        elif place.is_array:
            self._emit(f"{target} = []")
        else:
            maker = self._name("default")
            self.scope[maker] = lambda: default_of(plan.form, place.field)
            self._emit(f"{target} = {maker}()")

    def _value(self, plan: Plan, place: Place, target: str, path: tuple[str, ...]) -> None:
        if place.is_fixed:
            self._read_fixed(FIXED[place.kind], target)
        elif place.kind == "struct" and not place.is_array and not place.nullable:
            inner = self._name("o")
            self._struct(plan.inner(place), inner, path)
            self._emit(f"{target} = {inner}")
        else:
            self._sized(plan, place, target, path)

    def _sized(self, plan: Plan, place: Place, target: str, path: tuple[str, ...]) -> None:
        """Read a value after its length, its count or the mark of a nullable struct."""
        size = self._name("n")
        self._read_fixed(place.prefix, size)
        self._flush()
        if place.prefix == "B":
            self._emit(f"if {size} > 127:")
            self._emit(f"    {size}, p = finish_varint(data, p, {size})")
        self._emit(f"if {size} {'== 0' if place.prefix == 'B' else '< 0'}:")
        self.depth += 1
        if place.nullable:
            self._emit(f"{target} = None")
            self.depth -= 1
            self._emit("else:")
            self.depth += 1
            self._body(plan, place, target, size, path)
            self._flush()
            self.depth -= 1
        else:
            self._fail(path, "must not be null")
            self.depth -= 1
            self._body(plan, place, target, size, path)

    def _body(
        self, plan: Plan, place: Place, target: str, size: str, path: tuple[str, ...]
    ) -> None:
        if place.is_array:
            self._array(plan, place, target, size, path)
        elif place.kind == "struct":
            inner = self._name("o")
            self._struct(plan.inner(place), inner, path)
            self._emit(f"{target} = {inner}")
        else:
            self._text(place, target, size, path)

    def _text(self, place: Place, target: str, size: str, path: tuple[str, ...]) -> None:
        end = self._name("e")
        self._emit(f"{end} = p + {size}" + (" - 1" if place.prefix == "B" else ""))
        self._emit(f"if {end} > limit:")
        self.depth += 1
        self._fail(path, "is longer than the bytes received")
        self.depth -= 1
        if place.kind == "string" and place.prefix == "B":
            # A compact length may exceed what the plain one could express; Kafka refuses that too.
            self._emit(f"if {end} - p > {MAX_STRING_BYTES}:")
            self.depth += 1
            self._fail(path, "is longer than a string may be")
            self.depth -= 1
        piece = f"data[p:{end}]"
        if place.kind != "records" and self.from_view:
            piece += ".tobytes()"
        if place.kind == "string":
            piece += ".decode()"
        self._emit(f"{target} = {piece}")
        self._emit(f"p = {end}")

    def _array(
        self, plan: Plan, place: Place, target: str, size: str, path: tuple[str, ...]
    ) -> None:
        if place.prefix == "B":
            self._emit(f"{size} -= 1")
        smallest = item_size(plan, place)
        fixed = place.kind in FIXED
        is_counted = self.is_request or not fixed
        self._emit(f"if {size} * {smallest} > limit - p:")
        self.depth += 1
        self._fail(path, "claims more items than were received")
        self.depth -= 1
        if is_counted:
            self._emit(f"room -= {size}")
        self._emit("if room < 0:" if is_counted else f"if {size} > {MAX_ARRAY_ITEMS}:")
        self.depth += 1
        most = f"{MAX_REQUEST_ITEMS:,} in one request" if self.is_request else MAX_ARRAY_ITEMS
        self._fail(path, f"has more items than are allowed ({most})")
        self.depth -= 1
        if fixed:
            runs = f"runs_{place.kind}"
            self.scope[runs] = _RUNS[place.kind]
            self._emit(f"{target} = [*{runs}[{size}](data, p)]")
            self._emit(f"p += {size} * {smallest}")
            return
        self._items(plan, place, target, size, path)

    def _items(
        self, plan: Plan, place: Place, target: str, size: str, path: tuple[str, ...]
    ) -> None:
        found, item = self._name("a"), self._name("o")
        self._emit(f"{target} = {found} = []")
        # Cheaper than a range for few items, as nearly all messages have them.
        self._emit(f"while {size}:")
        self.depth += 1
        self._emit(f"{size} -= 1")
        if place.kind == "struct":
            self._struct(plan.inner(place), item, path)
        else:
            one = place._replace(is_array=False, nullable=False)
            self._sized(plan, one, item, path)
        self._flush()
        self._emit(f"{found}.append({item})")
        self.depth -= 1

    def _tags(self, plan: Plan, target: str, path: tuple[str, ...]) -> None:
        count = self._name("t")
        self._read_fixed("B", count)
        self._flush()
        self._emit(f"if {count}:")
        self.depth += 1
        if plan.tagged:
            self._known_tags(plan, target, count, path)
        else:
            self._emit(f"p = skip_tags(data, p, {count}, limit)")
        self.depth -= 1

    def _known_tags(self, plan: Plan, target: str, count: str, path: tuple[str, ...]) -> None:
        end, tag, size = self._name("e"), self._name("k"), self._name("n")
        self._emit(f"if {count} > 127:")
        self._emit(f"    {count}, p = finish_varint(data, p, {count})")
        self._emit(f"for _ in range({count}):")
        self.depth += 1
        self._emit(f"{tag}, p = read_varint(data, p)")
        self._emit(f"{size}, p = read_varint(data, p)")
        self._emit(f"{end} = p + {size}")
        self._emit(f"if {end} > limit:")
        self.depth += 1
        self._fail((*path, "a tagged field"), "is longer than the bytes received")
        self.depth -= 1
        for branch, place in zip(["if", *["elif"] * 100], plan.tagged, strict=False):
            self._emit(f"{branch} {tag} == {place.tag}:")
            self.depth += 1
            self._tagged_value(plan, place, f"{target}.{place.name}", end, (*path, place.name))
            self.depth -= 1
        self._emit("else:")
        self._emit(f"    p = {end}")
        self.depth -= 1

    def _tagged_value(
        self, plan: Plan, place: Place, target: str, end: str, path: tuple[str, ...]
    ) -> None:
        self._value(plan, place, target, path)
        self._flush()
        self._emit(f"if p != {end}:")
        self.depth += 1
        self._fail(path, "has another size than its tag says")
        self.depth -= 1


def refuse_version(form: type[Any], version: int) -> NoReturn:
    """Raise WireError for a version that the message does not have."""
    raise WireError(f"{form.__name__} has no version {version} (it has {form.form_versions})")
