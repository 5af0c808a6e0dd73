"""The bytes of one request, as `tap --bytes` has kept them.

00000000  00 00 00 39 00 1a 00 03  00 00 00 07 00 07 72 64  |...9..........rd|
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from fencepost.base.failures import FencepostError
from fencepost.forensics.tap.swimlane.story import Call, Story
from fencepost.forensics.tap.wording import moment

_ROW: Final = 16


def find_request(story: Story, number: int) -> Call:
    """Returns a request of a story by its number; FencepostError if its bytes are not there."""
    name, count = story.transactional_id, len(story.calls)
    if not 1 <= number <= count:
        raise FencepostError(f"The trace has requests 1 to {count} of {name}, and no {number}.")
    call = story.calls[number - 1]
    if "bytes" not in call.request:
        raise FencepostError(
            f"The trace does not have the bytes of request {number} ({call.api}): `fencepost tap "
            "--bytes` keeps those of transactions."
        )
    return call


def request_row(call: Call) -> dict[str, Any]:
    """Returns a request with its bytes for JSON."""
    names = ("api", "api_version", "client_id", "correlation_id", "size_bytes", "body", "bytes")
    row = {"number": call.number, "at_us": call.time_us, "broker": call.broker}
    return row | {name: call.request.get(name) for name in names}


def dump(call: Call) -> Iterator[str]:
    """Yields the lines: what the request is, and its bytes."""
    request = call.request
    yield (
        f"#{call.number} {call.api} {request.get('api_version')} to {call.broker} at "
        f"{moment(call.time_us)} UTC: {request.get('size_bytes')} bytes, correlation id "
        f"{request.get('correlation_id')}, {call.words}"
    )
    end = 0
    for piece in request["bytes"]:
        yield from _left_out(piece["at"] - end)
        data = bytes.fromhex(piece["hex"])
        for start in range(0, len(data), _ROW):
            yield _row(piece["at"] + start, data[start : start + _ROW])
        end = piece["at"] + len(data)
    yield from _left_out(int(request.get("size_bytes") or end) - end)


def _left_out(count: int) -> Iterator[str]:
    if count > 0:
        yield f"          ... {count} bytes are not kept ..."


def _row(position: int, data: bytes) -> str:
    left, right = data[: _ROW // 2].hex(" "), data[_ROW // 2 :].hex(" ")
    text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in data)
    return f"{position:08x}  {left:<23}  {right:<23}  |{text}|"
