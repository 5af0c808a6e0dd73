"""The broker's trace: every request and reply as a line of the format in records/trace.py.

Requests of other brokers of a cluster are traced too; they have no connection and no size. Of the
records in a Fetch reply it has the size only: they may be a view of a file, which only the socket
reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TextIO

from fencepost.broker.context import Context
from fencepost.records.trace import (
    Body,
    as_text,
    describe_message,
    describe_size,
    opening_line,
)
from fencepost.wire.apis import API, ApiKey

MAX_UNANSWERED: Final = 20_000
"""Requests whose time is kept. Some never get a reply: Produce with acks 0, dropped ones."""
MAX_CLIENTS: Final = 20_000
"""Clients whose number is kept."""


class Trace:
    """Writes to a file and flushes each line, so that it is complete after kill -9."""

    def __init__(
        self, now_us: Callable[[], int], file: TextIO, broker_id: int | None = None
    ) -> None:
        """`broker_id` is in every line of a file that several brokers write."""
        self._now_us = now_us
        self._file = file
        self._broker = {} if broker_id is None else {"broker": broker_id}
        self._times: dict[int, int] = {}
        self._numbers: dict[str, int] = {}
        self._last_number = 0
        self._write(opening_line("broker", now_us(), **self._broker))

    def request(
        self, api: ApiKey, request: object, context: Context, client: str, size: int | None
    ) -> None:
        """Writes a request; `size` is that of its frame, if it came in one."""
        now_us = self._now_us()
        self._keep_time(context, now_us)
        line = self._line(now_us, "request", api, context, client, size)
        line["body"], _ = describe_message(request)
        self._write(line)

    def reply(
        self, api: ApiKey, reply: object, context: Context, client: str, size: int | None
    ) -> None:
        """Writes a reply."""
        now_us = self._now_us()
        line = self._line(now_us, "reply", api, context, client, size)
        line["duration_us"] = now_us - self._times.pop(id(context), now_us)
        body, line["errors"] = describe_size(reply)
        line["body"] = body
        self._write(line)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _keep_time(self, context: Context, now_us: int) -> None:
        # A context lives until its reply, so its id is unique among those that wait.
        if len(self._times) >= MAX_UNANSWERED:
            del self._times[next(iter(self._times))]
        self._times[id(context)] = now_us

    def _line(
        self,
        now_us: int,
        kind: str,
        api: ApiKey,
        context: Context,
        client: str,
        size: int | None,
    ) -> Body:
        line: dict[str, Any] = {"time_us": now_us, "kind": kind}
        if size is not None:
            line["connection"] = self._number(client)
        line |= {
            "client": client,
            **self._broker,
            "client_id": context.client_id,
            "api": API[api].name,
            "api_version": context.api_version,
            "correlation_id": context.correlation_id,
        }
        if size is not None:
            line["size_bytes"] = size
        return line

    def _number(self, client: str) -> int:
        """The number of a connection: its client's address is unique while it is open."""
        number = self._numbers.get(client)
        if number is None:
            if len(self._numbers) >= MAX_CLIENTS:
                del self._numbers[next(iter(self._numbers))]
            number = self._last_number = self._last_number + 1
            self._numbers[client] = number
        return number

    def _write(self, line: Body) -> None:
        self._file.write(as_text(line))
        self._file.flush()
