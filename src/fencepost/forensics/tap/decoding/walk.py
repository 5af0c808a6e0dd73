"""Walks through a message while its bytes arrive, without opening records.

A walk follows the plan of a message (wire/plan.py). It is a generator that asks for the next bytes
and gets them when they have come: a positive number asks for that many bytes, a negative one says
how many to skip. So a frame of 100 MB passes in pieces, and what is kept of it is its *skeleton*:
the message with every records field emptied, small enough to be decoded as usual. Of records it
keeps a summary: size and first batch headers.

On its way it notes where addresses are (`Spot`), for `rewriting.py`, and what is confidential, for
`kept_bytes.py`.

Walking is lenient: a null where none is allowed is the receiver's problem. Lengths cost nothing
until their bytes arrive, and the skeleton is limited.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from typing import Any, Final, NamedTuple

from fencepost.base.failures import WireError
from fencepost.base.seams import Buffer
from fencepost.records.batch import HEADER_BYTES, BatchError, read_header
from fencepost.records.trace import CONFIDENTIAL, MAX_ITEMS, Body, describe_batch
from fencepost.wire.plan import Place, Plan, plan_of
from fencepost.wire.schema import FIXED

MAX_SKELETON_BYTES: Final = 8 * 1024 * 1024
"""What is kept of one message. Fetch replies of 10,000 partitions take about 1 MB."""

Steps = Generator[int, bytes, None]
"""Yields the number of bytes it needs next, or minus those to skip."""

_INT32: Final = struct.Struct(">i")
_INT16: Final = struct.Struct(">h")
_MAX_VARINT_BYTES: Final = 5


class TagSize(NamedTuple):
    """The size of a tagged field, as a varint at these positions."""

    start: int
    end: int
    size: int


class Spot(NamedTuple):
    """An address in a message: positions count from the start of what was walked."""

    start: int
    """Of the length of the host name."""
    end: int
    """After the host name."""
    host: str
    port_start: int
    port_code: str
    port: int
    node_id: int
    compact: bool
    tag: TagSize | None
    """The size of the tagged field that it is in."""


class Walk:
    """One message on its way; feed it the bytes in pieces."""

    def __init__(self, steps: Callable[[Walk], Steps]) -> None:
        self.skeleton = bytearray()
        self.summaries: list[Body] = []
        self.spots: list[Spot] = []
        self.tag: TagSize | None = None
        """The tagged field at the present position; no message nests those with addresses."""
        self.endpoint_tag: int | None = None
        """Where the number of a tagged field with addresses is."""
        self.hidden: list[tuple[int, int]] = []
        """From where to where the message is confidential: records, fields with such names, and
        fields that are not known here."""
        self.position = 0
        self.is_complete = False
        self.problem: str | None = None
        """Why the rest of the message cannot be followed; it is complete then."""
        self._steps = steps(self)
        self._part = bytearray()
        self._need = 0
        self._advance(None)

    @property
    def pending(self) -> int:
        """Bytes that were fed and wait for the rest of a field."""
        return len(self._part)

    def feed(self, data: Buffer) -> None:
        """Follows the next bytes of the message."""
        start, end = 0, len(data)
        while not self.is_complete and start < end:
            need = self._need
            if need < 0:
                count = min(-need, end - start)
                self._need += count
                self.position += count
                start += count
                if self._need == 0:
                    self._advance(b"")
                continue
            missing = need - len(self._part)
            if end - start < missing:
                self._part += data[start:end]
                return
            piece = bytes(data[start : start + missing])
            start += missing
            if self._part:
                piece = bytes(self._part) + piece
                self._part.clear()
            self.position += need
            self._advance(piece)

    def keep(self, piece: bytes) -> bytes:
        """Keeps bytes in the skeleton."""
        self.skeleton += piece
        if len(self.skeleton) > MAX_SKELETON_BYTES:
            raise WireError("it is too large to be decoded")
        return piece

    def hide(self, size: int) -> None:
        """Notes that the next bytes are confidential."""
        if size > 0:
            self.hidden.append((self.position, self.position + size))

    def _advance(self, piece: bytes | None) -> None:
        """Runs the generator up to its next request for bytes."""
        try:
            while True:
                self._need = self._steps.send(piece)  # type: ignore[arg-type]
                if self._need > MAX_SKELETON_BYTES:
                    raise WireError("a field is too large to be decoded")
                if self._need != 0:
                    return
                piece = b""
        except StopIteration:
            self.is_complete = True
        except (WireError, BatchError, UnicodeDecodeError) as problem:
            self.is_complete = True
            self.problem = str(problem)


def walk_message(
    form: type[Any], version: int, *, has_header_tags: bool
) -> Callable[[Walk], Steps]:
    """The steps of a message: the tags of its header if it has any, and its body.

    The skeleton has the body only.
    """

    def steps(walk: Walk) -> Steps:
        if has_header_tags:
            yield from _skip_tags(walk)
            walk.skeleton.clear()
        yield from _struct(walk, _outline(form, version)[0])

    return steps


class _Field(NamedTuple):
    """One step of a struct."""

    place: Place | None
    """None for a run of values of fixed size."""
    size: int
    inner: _Outline | None


class _Outline(NamedTuple):
    """A struct, with neighbouring values of fixed size joined."""

    fields: tuple[_Field, ...]
    tagged: dict[int, _Field]
    flexible: bool
    is_endpoint: bool


_OUTLINES: Final[dict[tuple[type[Any], int], tuple[_Outline, bool]]] = {}
"""Outlines, each with whether it holds addresses."""


def _outline(form: type[Any], version: int) -> tuple[_Outline, bool]:
    found = _OUTLINES.get((form, version))
    if found is None:
        outline = _outline_of(plan_of(form, version))
        found = _OUTLINES[form, version] = outline, _holds(outline)
    return found


def holds_endpoints(form: type[Any], version: int) -> bool:
    """Whether a message may hold addresses of brokers."""
    return _outline(form, version)[1]


def _holds(outline: _Outline) -> bool:
    inner = [field.inner for field in (*outline.fields, *outline.tagged.values())]
    return outline.is_endpoint or any(_holds(each) for each in inner if each is not None)


def _outline_of(plan: Plan) -> _Outline:
    ordered = list(plan.ordered)
    is_endpoint = {"host", "port"} <= {place.name for place in ordered}
    fields: list[_Field] = []
    for place in ordered:
        if not place.is_fixed or is_endpoint:
            size = _fixed_size(place) if place.is_fixed else 0
            fields.append(_Field(place, size, _inner(plan, place)))
        elif fields and fields[-1].place is None:
            fields[-1] = _Field(None, fields[-1].size + _fixed_size(place), None)
        else:
            fields.append(_Field(None, _fixed_size(place), None))
    tagged = {
        place.tag: _Field(place, _fixed_size(place) if place.is_fixed else 0, _inner(plan, place))
        for place in plan.tagged
        if place.tag is not None
    }
    return _Outline(tuple(fields), tagged, plan.flexible, is_endpoint)


def _inner(plan: Plan, place: Place) -> _Outline | None:
    return _outline_of(plan.inner(place)) if place.kind == "struct" else None


def _fixed_size(place: Place) -> int:
    return struct.calcsize(">" + FIXED[place.kind])


def _struct(walk: Walk, outline: _Outline) -> Steps:
    if outline.is_endpoint:
        yield from _endpoint(walk, outline)
    else:
        for field in outline.fields:
            if field.place is None:
                walk.keep((yield field.size))
            else:
                yield from _value(walk, field)
    if outline.flexible:
        yield from _tags(walk, outline)


def _value(walk: Walk, field: _Field) -> Steps:
    place = field.place
    assert place is not None
    if field.size and not place.is_array:
        walk.keep((yield field.size))
    elif place.kind == "records" and not place.is_array:
        yield from _records(walk, place)
    elif place.is_array:
        yield from _array(walk, field)
    elif field.inner is not None:
        if place.nullable and walk.keep((yield 1)) == b"\xff":
            return
        yield from _struct(walk, field.inner)
    else:
        size = yield from _length(walk, place)
        if size > 0:
            if place.name in CONFIDENTIAL:
                walk.hide(size)
            walk.keep((yield size))


def _length(walk: Walk, place: Place) -> Generator[int, bytes, int]:
    """The length or count before a value; -1 for null."""
    if place.prefix == "B":
        return (yield from _varint(walk)) - 1
    unpack = _INT16 if place.prefix == "h" else _INT32
    size: int = unpack.unpack(walk.keep((yield unpack.size)))[0]
    return size


def _varint(walk: Walk) -> Generator[int, bytes, int]:
    value = 0
    for number in range(_MAX_VARINT_BYTES):
        byte = walk.keep((yield 1))[0]
        value |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            return value
    raise WireError("a varint is longer than five bytes")


def _array(walk: Walk, field: _Field) -> Steps:
    place = field.place
    assert place is not None
    count = yield from _length(walk, place)
    if place.kind in FIXED:
        if count > 0:
            size = count * struct.calcsize(">" + FIXED[place.kind])
            if size > MAX_SKELETON_BYTES:
                raise WireError("an array is too long to be decoded")
            walk.keep((yield size))
        return
    one = field._replace(place=place._replace(is_array=False, nullable=False))
    for _ in range(count):
        if field.inner is not None:
            yield from _struct(walk, field.inner)
        else:
            yield from _value(walk, one)


def _records(walk: Walk, place: Place) -> Steps:
    """Skips records; their length in the skeleton becomes 0."""
    start = len(walk.skeleton)
    size = yield from _length(walk, place)
    if size < 0:
        return
    walk.skeleton[start:] = b"\x01" if place.prefix == "B" else _INT32.pack(0)
    summary: Body = {"size_bytes": size}
    batches: list[Body] = []
    left = size
    while left >= HEADER_BYTES and len(batches) < MAX_ITEMS:
        start = walk.position
        header = yield HEADER_BYTES
        left -= HEADER_BYTES
        try:
            batch = read_header(header)
        except BatchError:
            walk.hidden.append((start, walk.position))
            break
        batches.append(describe_batch(batch))
        rest = min(batch.size_bytes - HEADER_BYTES, left)
        walk.hide(rest)
        yield -rest
        left -= rest
    if batches:
        summary["batches"] = batches
    if left and len(batches) == MAX_ITEMS:
        summary["more_batches"] = True
    walk.summaries.append(summary)
    walk.hide(left)
    yield -left


def _endpoint(walk: Walk, outline: _Outline) -> Steps:
    """Notes the address in a struct with the fields `host` and `port`."""
    known: dict[str, int] = {}
    host, start, end, port_start, code, compact = "", 0, 0, 0, "i", False
    for field in outline.fields:
        place = field.place
        assert place is not None
        if place.name == "host":
            start, compact = walk.position, place.prefix == "B"
            size = yield from _length(walk, place)
            host = walk.keep((yield size)).decode() if size > 0 else ""
            end = walk.position
        elif field.size and not place.is_array:
            if place.name == "port":
                port_start, code = walk.position, FIXED[place.kind]
            piece = walk.keep((yield field.size))
            known[place.name] = int.from_bytes(piece, "big", signed=FIXED[place.kind].islower())
        else:
            yield from _value(walk, field)
    node_id = known.get("node_id", known.get("broker_id", -1))
    walk.spots.append(
        Spot(start, end, host, port_start, code, known["port"], node_id, compact, walk.tag)
    )


def _tags(walk: Walk, outline: _Outline) -> Steps:
    count = yield from _varint(walk)
    for _ in range(count):
        start = walk.position
        tag = yield from _varint(walk)
        field = outline.tagged.get(tag)
        if field is None:
            size = yield from _varint(walk)
            walk.hide(size)
            walk.keep((yield size))
            continue
        is_endpoint = field.inner is not None and _holds(field.inner)
        if is_endpoint:
            walk.endpoint_tag = start
        start = walk.position
        size = yield from _varint(walk)
        end, spots = walk.position + size, len(walk.spots)
        if is_endpoint:
            walk.tag = TagSize(start, walk.position, size)
        yield from _value(walk, field)
        walk.tag = None
        if walk.position != end:
            del walk.spots[spots:]  # The new size of the field cannot be told.
            raise WireError("a tagged field has another size than it says")


def _skip_tags(walk: Walk) -> Steps:
    for _ in range((yield from _varint(walk))):
        yield from _varint(walk)
        size = yield from _varint(walk)
        walk.keep((yield size))
