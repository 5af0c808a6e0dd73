"""Writes the source of a reader: one straight function for a form and a version.

A reader takes a buffer and a position and returns the form and the position behind it. How it is
fast:

- Neighbouring fields of fixed size are taken by one `unpack_from`, together with the length of the
  string or array that follows them and the count of tags (both of which are nearly always one byte
  in flexible versions; a longer varint is finished by `finish_varint`).
- Structs within structs are written in place, not called; a form is made by `object.__new__` and
  stores.
- A message without records is read from one bytes object, which is copied if need be: slices of
  bytes decode faster than slices of a memoryview.

How it is safe: a length is compared with the bytes left before it is used, a count as well (each
item takes its smallest size). `MAX_ARRAY_ITEMS` bounds an array of numbers by itself, and the items
of all other arrays, which cost an object or more each, over the whole message. What runs over the
end within `unpack_from` or an index is turned into a WireError by the one handler around the body.
Bytes behind the message are left alone, as Kafka leaves them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, NoReturn

from fencepost.base.failures import WireError
from fencepost.base.limits import MAX_ARRAY_ITEMS, MAX_STRING_BYTES
from fencepost.base.seams import Buffer
from fencepost.wire.plan import Place, Plan, default_of, holds_records, item_size
from fencepost.wire.schema import FIXED, UNSET

_KEPT_RUNS: Final = 256


def finish_varint(data: Buffer, position: int, first: int) -> tuple[int, int]:
    """The rest of an unsigned varint whose first byte said that there is more."""
    value = first & 0x7F
    for shift in (7, 14, 21, 28):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise WireError("a varint is longer than five bytes")


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    """An unsigned varint; IndexError where the bytes end."""
    first = data[position]
    return (first, position + 1) if first < 0x80 else finish_varint(data, position + 1, first)


def skip_tags(data: Buffer, position: int, count: int, limit: int) -> int:
    """Steps over tagged fields that we do not know, as a newer peer may send them."""
    if count > 127:
        count, position = finish_varint(data, position, count)
    for _ in range(count):
        _, position = read_varint(data, position)
        size, position = read_varint(data, position)
        position += size
        if position > limit:
            raise WireError(f"a tagged field claims {size} bytes, which are not there")
    return position


class _Runs(dict[int, Callable[[Buffer, int], tuple[Any, ...]]]):
    """Unpackers of n equal fixed items. Short runs are kept; a long one is made for its one use."""

    def __init__(self, code: str) -> None:
        self.code = code

    def __missing__(self, count: int) -> Callable[[Buffer, int], tuple[Any, ...]]:
        # "16s" repeated is the only code that cannot carry a count in front.
        body = self.code * count if len(self.code) > 1 else f"{count}{self.code}"
        unpack = struct.Struct(">" + body).unpack_from
        if count <= _KEPT_RUNS:
            self[count] = unpack
        return unpack


_RUNS: Final = {kind: _Runs(code) for kind, code in FIXED.items()}


class ReaderSource:
    """The text of one reader as it grows."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.title = f"{plan.form.__name__} v{plan.version}"
        self.from_view = holds_records(plan)
        self.lines: list[str] = []
        self.depth = 2
        self.counter = 0
        self.pending: list[tuple[str, str]] = []
        self.scope: dict[str, Any] = {
            "WireError": WireError,
            "StructError": struct.error,
            "finish_varint": finish_varint,
            "read_varint": read_varint,
            "skip_tags": skip_tags,
            "new": object.__new__,
        }

    def function(self) -> Callable[[Buffer, int], tuple[Any, int]]:
        """Compiles the reader."""
        source = self.source()
        exec(compile(source, f"<reader of {self.title}>", "exec"), self.scope)  # noqa: S102 - our own text
        read: Callable[[Buffer, int], tuple[Any, int]] = self.scope["read"]
        return read

    def source(self) -> str:
        root = self.name("o")
        self.struct(self.plan, root, ())
        self.flush()
        wanted = "memoryview" if self.from_view else "bytes"
        return "\n".join(
            [
                "def read(data, p=0):",
                f"    if type(data) is not {wanted}:",
                f"        data = {wanted}(data)",
                "    limit = len(data)",
                f"    room = {MAX_ARRAY_ITEMS}",
                "    try:",
                *self.lines,
                f"        return {root}, p",
                "    except (StructError, IndexError):",
                f"        raise WireError('{self.title} is cut short') from None",
                "    except UnicodeDecodeError:",
                f"        raise WireError('{self.title} has a string that is not UTF-8') from None",
            ]
        )

    # What every part is made of.

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def name(self, stem: str) -> str:
        self.counter += 1
        return f"{stem}{self.counter}"

    def take(self, code: str, target: str) -> None:
        """A fixed value is due: it waits for its neighbours."""
        self.pending.append((code, target))

    def flush(self) -> None:
        """Reads what waits, in one call."""
        if not self.pending:
            return
        codes = "".join(code for code, _ in self.pending)
        targets = ", ".join(target for _, target in self.pending)
        self.pending.clear()
        if codes == "B":
            self.emit(f"{targets} = data[p]")
            self.emit("p += 1")
            return
        unpacker = struct.Struct(">" + codes)
        bound = "u_" + codes.replace("?", "t")
        self.scope[bound] = unpacker.unpack_from
        self.emit(f"({targets},) = {bound}(data, p)")
        self.emit(f"p += {unpacker.size}")

    def fail(self, path: tuple[str, ...], complaint: str) -> None:
        sentence = f"{self.title}: {'.'.join(path)} {complaint}"
        self.emit(f"raise WireError({sentence!r})")

    # The parts.

    def struct(self, plan: Plan, target: str, path: tuple[str, ...]) -> None:
        bound = f"C_{plan.form.__name__}"
        self.scope[bound] = plan.form
        self.emit(f"{target} = new({bound})")
        for place in plan.places:
            if not place.present or place.tag is not None:
                self.default(plan, place, f"{target}.{place.name}")
        for place in plan.ordered:
            self.value(plan, place, f"{target}.{place.name}", (*path, place.name))
        if plan.flexible:
            self.tags(plan, target, path)

    def default(self, plan: Plan, place: Place, target: str) -> None:
        value = place.field.default_value()
        if value is not UNSET:
            self.emit(f"{target} = {value!r}")
        elif place.is_array:
            self.emit(f"{target} = []")
        else:
            maker = self.name("default")
            self.scope[maker] = lambda: default_of(plan.form, place.field)
            self.emit(f"{target} = {maker}()")

    def value(self, plan: Plan, place: Place, target: str, path: tuple[str, ...]) -> None:
        if place.is_fixed:
            self.take(FIXED[place.kind], target)
        elif place.kind == "struct" and not place.is_array and not place.nullable:
            inner = self.name("o")
            self.struct(plan.inner(place), inner, path)
            self.emit(f"{target} = {inner}")
        else:
            self.sized(plan, place, target, path)

    def sized(self, plan: Plan, place: Place, target: str, path: tuple[str, ...]) -> None:
        """A value behind a length, a count or the mark of a struct that may be null."""
        size = self.name("n")
        self.take(place.prefix, size)
        self.flush()
        if place.prefix == "B":
            self.emit(f"if {size} > 127:")
            self.emit(f"    {size}, p = finish_varint(data, p, {size})")
        self.emit(f"if {size} {'== 0' if place.prefix == 'B' else '< 0'}:")
        self.depth += 1
        if place.nullable:
            self.emit(f"{target} = None")
            self.depth -= 1
            self.emit("else:")
            self.depth += 1
            self.body(plan, place, target, size, path)
            self.flush()
            self.depth -= 1
        else:
            self.fail(path, "is null, which it must not be")
            self.depth -= 1
            self.body(plan, place, target, size, path)

    def body(self, plan: Plan, place: Place, target: str, size: str, path: tuple[str, ...]) -> None:
        if place.is_array:
            self.array(plan, place, target, size, path)
        elif place.kind == "struct":
            inner = self.name("o")
            self.struct(plan.inner(place), inner, path)
            self.emit(f"{target} = {inner}")
        else:
            self.text(place, target, size, path)

    def text(self, place: Place, target: str, size: str, path: tuple[str, ...]) -> None:
        end = self.name("e")
        self.emit(f"{end} = p + {size}" + (" - 1" if place.prefix == "B" else ""))
        self.emit(f"if {end} > limit:")
        self.depth += 1
        self.fail(path, "is longer than the bytes that came")
        self.depth -= 1
        if place.kind == "string" and place.prefix == "B":
            # A compact length may claim more than the plain one could: Kafka refuses that too.
            self.emit(f"if {end} - p > {MAX_STRING_BYTES}:")
            self.depth += 1
            self.fail(path, "is longer than a string may be")
            self.depth -= 1
        piece = f"data[p:{end}]"
        if place.kind != "records" and self.from_view:
            piece += ".tobytes()"
        if place.kind == "string":
            piece += ".decode()"
        self.emit(f"{target} = {piece}")
        self.emit(f"p = {end}")

    def array(
        self, plan: Plan, place: Place, target: str, size: str, path: tuple[str, ...]
    ) -> None:
        if place.prefix == "B":
            self.emit(f"{size} -= 1")
        smallest = item_size(plan, place)
        fixed = place.kind in FIXED
        if not fixed:
            self.emit(f"room -= {size}")
        allowed = f"{size} > {MAX_ARRAY_ITEMS}" if fixed else "room < 0"
        self.emit(f"if {size} * {smallest} > limit - p or {allowed}:")
        self.depth += 1
        self.fail(path, "claims more items than it can have")
        self.depth -= 1
        if fixed:
            runs = f"runs_{place.kind}"
            self.scope[runs] = _RUNS[place.kind]
            self.emit(f"{target} = [*{runs}[{size}](data, p)]")
            self.emit(f"p += {size} * {smallest}")
            return
        self.items(plan, place, target, size, path)

    def items(
        self, plan: Plan, place: Place, target: str, size: str, path: tuple[str, ...]
    ) -> None:
        found, item = self.name("a"), self.name("o")
        self.emit(f"{target} = {found} = []")
        self.emit(f"for _ in range({size}):")
        self.depth += 1
        if place.kind == "struct":
            self.struct(plan.inner(place), item, path)
        else:
            one = place._replace(is_array=False, nullable=False)
            self.sized(plan, one, item, path)
        self.flush()
        self.emit(f"{found}.append({item})")
        self.depth -= 1

    def tags(self, plan: Plan, target: str, path: tuple[str, ...]) -> None:
        count = self.name("t")
        self.take("B", count)
        self.flush()
        self.emit(f"if {count}:")
        self.depth += 1
        if plan.tagged:
            self.known_tags(plan, target, count, path)
        else:
            self.emit(f"p = skip_tags(data, p, {count}, limit)")
        self.depth -= 1

    def known_tags(self, plan: Plan, target: str, count: str, path: tuple[str, ...]) -> None:
        end, tag, size = self.name("e"), self.name("k"), self.name("n")
        self.emit(f"if {count} > 127:")
        self.emit(f"    {count}, p = finish_varint(data, p, {count})")
        self.emit(f"for _ in range({count}):")
        self.depth += 1
        self.emit(f"{tag}, p = read_varint(data, p)")
        self.emit(f"{size}, p = read_varint(data, p)")
        self.emit(f"{end} = p + {size}")
        self.emit(f"if {end} > limit:")
        self.depth += 1
        self.fail((*path, "a tagged field"), "is longer than the bytes that came")
        self.depth -= 1
        for branch, place in zip(["if", *["elif"] * 100], plan.tagged, strict=False):
            self.emit(f"{branch} {tag} == {place.tag}:")
            self.depth += 1
            self.tagged_value(plan, place, f"{target}.{place.name}", end, (*path, place.name))
            self.depth -= 1
        self.emit("else:")
        self.emit(f"    p = {end}")
        self.depth -= 1

    def tagged_value(
        self, plan: Plan, place: Place, target: str, end: str, path: tuple[str, ...]
    ) -> None:
        self.value(plan, place, target, path)
        self.flush()
        self.emit(f"if p != {end}:")
        self.depth += 1
        self.fail(path, "has another size than its tag says")
        self.depth -= 1


def refuse_version(form: type[Any], version: int) -> NoReturn:
    """There is no such version of the message."""
    raise WireError(f"{form.__name__} has no version {version} (it has {form.form_versions})")
