"""Requests by API: how many, how long, how large, and with which errors.

The dispatcher has one `RequestCounters` if metrics are served, and a route has the `ApiCounters` of
its API, so a request needs no dictionary to be counted. A request is timed from its dispatch to its
reply; the time of a long poll counts.

Errors are those of the whole reply, as in Kafka: one reply to a Produce of three partitions may
count a success and two errors. Only errors are counted, and by code: a code is one of about 130,
so the number of series is bounded.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from fencepost.broker.metrics.counters import REQUEST_BOUNDS, Histogram
from fencepost.wire.apis import ApiKey
from fencepost.wire.schema import Form

ErrorPaths = tuple[tuple[str, ...], tuple[tuple[str, Any], ...]]
"""The fields of a form with an error code, and its arrays of forms that have some, recursively."""


class ApiCounters:
    """The requests of one API, in all its versions."""

    __slots__ = ("received_bytes", "seconds", "sent_bytes")

    def __init__(self) -> None:
        self.received_bytes = 0
        self.sent_bytes = 0
        self.seconds = Histogram(REQUEST_BOUNDS)


class RequestCounters:
    """All requests of one broker."""

    __slots__ = ("_paths", "by_api", "errors")

    def __init__(self) -> None:
        self.by_api: dict[ApiKey, ApiCounters] = {}
        self.errors: dict[tuple[ApiKey, int], int] = {}
        """By API and error code."""
        self._paths: dict[type, ErrorPaths] = {}

    def of(self, api: ApiKey) -> ApiCounters:
        """The counters of one API."""
        found = self.by_api.get(api)
        if found is None:
            found = self.by_api[api] = ApiCounters()
        return found

    def count_errors(self, api: ApiKey, reply: object) -> None:
        """Counts the error codes of a reply."""
        paths = self._paths.get(type(reply))
        if paths is None:
            paths = self._paths[type(reply)] = error_paths(type(reply))
        self._count(api, reply, paths)

    def _count(self, api: ApiKey, form: Any, paths: ErrorPaths) -> None:
        codes, arrays = paths
        for name in codes:
            code = getattr(form, name)
            if code != 0:
                key = (api, int(code))
                self.errors[key] = self.errors.get(key, 0) + 1
        for name, inner in arrays:
            for item in getattr(form, name) or ():
                self._count(api, item, inner)


NO_PATHS: Final[ErrorPaths] = ((), ())


def error_paths(form: type) -> ErrorPaths:
    """Where the error codes of a response are."""
    if not issubclass(form, Form):
        return NO_PATHS
    codes = []
    arrays = []
    for field in form.form_fields:
        if field.name.endswith("error_code"):
            codes.append(field.name)
        elif field.is_array and field.is_struct:
            inner = error_paths(getattr(sys.modules[form.__module__], field.item_kind))
            if inner != NO_PATHS:
                arrays.append((field.name, inner))
    return tuple(codes), tuple(arrays)
