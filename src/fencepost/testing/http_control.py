"""Faults, time and contents of a broker over HTTP, for tests in any language.

    POST   /faults                      arms a fault (`plain_faults.py`)
    GET    /faults                      the faults, how often each has fired, and what has happened
    DELETE /faults                      removes all of them, and forgets what has happened
    POST   /faults/release              lets held requests take effect
    POST   /faults/ID/release, DELETE /faults/ID
    GET    /clock                       the broker's time
    POST   /clock/advance {"ms": 1}     also "seconds", "minutes", "hours", "days"
    POST   /clock/at {"moment": "2030-01-01T00:00Z"}
    GET    /records/TOPIC               with their fates
    GET    /committed/TOPIC             what a read_committed consumer sees
    GET    /transactions, /open-transactions
    POST   /exactly-once {"input": "payments", "output": "refunds"}
    POST   /crash, /restart

An answer is a JSON object. A refusal is {"error": "a sentence"}: 400 if the question is wrong, 409
if it cannot be done now or an assertion fails.

It can crash the broker, so not every program on the machine may use it: each request has to bring
the token, which only this user can read, and to name this address in its Host header. Web pages can
do neither: a page whose name an attacker points to 127.0.0.1 has that name in Host.

The broker does the work on its own thread, and this module waits for it, so each request has a
thread of the pool.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import json
import logging
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from fencepost.base.failures import ConfigError, FencepostError
from fencepost.broker.metrics.http import Answer, Request, Responder
from fencepost.testing.faults import Fault
from fencepost.testing.plain_faults import arm, checked

if TYPE_CHECKING:
    from fencepost.client.admin import TransactionView
    from fencepost.testing.contents import Record
    from fencepost.testing.embedded import Broker

log = logging.getLogger(__name__)

HOST: Final = "127.0.0.1"
ANSWER_SECONDS: Final = 120.0
"""Longer than anything that is asked of the broker may take."""

_DURATIONS: Final = {
    "ms": "milliseconds",
    "seconds": "seconds",
    "minutes": "minutes",
    "hours": "hours",
    "days": "days",
}

Words = Mapping[str, Any]
Endpoint = Callable[[str, Words], object]
"""It gets the part of the path that varies, and the body."""


class HttpControl:
    """The endpoints of one broker."""

    def __init__(self, broker: Broker, token: str) -> None:
        self._broker = broker
        self._token = token
        self._faults: dict[str, Fault] = {}
        self._ids = itertools.count(1)
        self._responder = Responder(
            {}, handler=self._handle, refuse=_error, answer_seconds=ANSWER_SECONDS
        )
        self._hosts: frozenset[str] = frozenset()
        self._with_words: Final = (self._arm, self._advance, self._go_to, self._assert_exactly_once)
        """The endpoints whose body says something."""
        self._endpoints: Final[Mapping[tuple[str, str], Endpoint]] = {
            ("POST", "/faults"): self._arm,
            ("GET", "/faults"): self._list_faults,
            ("DELETE", "/faults"): self._reset,
            ("POST", "/faults/release"): self._release_all,
            ("POST", "/faults/*/release"): self._release,
            ("DELETE", "/faults/*"): self._remove,
            ("GET", "/clock"): self._now,
            ("POST", "/clock/advance"): self._advance,
            ("POST", "/clock/at"): self._go_to,
            ("GET", "/records/*"): lambda topic, _: _records(broker.records(topic)),
            ("GET", "/committed/*"): lambda topic, _: _records(broker.committed(topic)),
            ("GET", "/transactions"): lambda _, __: _transactions(broker.transactions()),
            ("GET", "/open-transactions"): lambda _, __: _transactions(broker.open_transactions()),
            ("POST", "/exactly-once"): self._assert_exactly_once,
            ("POST", "/crash"): lambda _, __: broker.crash(),
            ("POST", "/restart"): lambda _, __: broker.restart(),
        }

    async def start(self) -> str:
        """Listens from now on; returns the URL."""
        port = await self._responder.listen(HOST, 0)
        self._hosts = frozenset({f"{HOST}:{port}", f"localhost:{port}"})
        return f"http://{HOST}:{port}"

    async def stop(self) -> None:
        """Closes the port."""
        await self._responder.close()

    # -- requests

    async def _handle(self, request: Request) -> Answer:
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        try:
            endpoint, part = self._find(request)
            words = _body(request)
            if words and endpoint not in self._with_words:
                raise ConfigError(f"{request.path} has no {next(iter(words))!r}: send no body.")
            found = await asyncio.to_thread(endpoint, part, words)
        except _Refused as problem:
            return _error(problem.status, str(problem))
        except ConfigError as problem:
            return _error(HTTPStatus.BAD_REQUEST, str(problem))
        except (FencepostError, AssertionError) as problem:
            return _error(HTTPStatus.CONFLICT, str(problem))
        except Exception as problem:
            log.exception("%s %s failed", request.method, request.path)
            return _error(
                HTTPStatus.INTERNAL_SERVER_ERROR,
                f"{type(problem).__name__}: {problem}; the log of the broker has more.",
            )
        return _json(HTTPStatus.OK, found or {})

    def _refusal(self, request: Request) -> Answer | None:
        """A refusal of strangers: they learn nothing of what is here."""
        if request.headers.get("host", "").lower() not in self._hosts:
            known = " or ".join(sorted(self._hosts))
            return _error(HTTPStatus.MISDIRECTED_REQUEST, f"The Host header has to be {known}.")
        given = request.headers.get("authorization", "").encode("latin-1")
        if not hmac.compare_digest(given, f"Bearer {self._token}".encode()):
            return _error(
                HTTPStatus.UNAUTHORIZED,
                'The header "Authorization: Bearer TOKEN" is needed, with the token of the file '
                "that `fencepost serve --test` names when it starts.",
            )
        return None

    def _find(self, request: Request) -> tuple[Endpoint, str]:
        path = request.path.partition("?")[0].rstrip("/")
        allowed = []
        for (method, pattern), endpoint in self._endpoints.items():
            part = _match(pattern, path)
            if part is None:
                continue
            if method == request.method:
                return endpoint, part
            allowed.append(method)
        if allowed:
            raise _Refused(
                HTTPStatus.METHOD_NOT_ALLOWED, f"{path} has {' and '.join(sorted(allowed))} only."
            )
        known = ", ".join(dict.fromkeys(pattern for _, pattern in self._endpoints))
        raise _Refused(HTTPStatus.NOT_FOUND, f"There is no {path!r}; there are {known}.")

    # -- faults

    def _arm(self, _: str, words: Words) -> object:
        fault = arm(self._broker.faults, words)
        name = str(next(self._ids))
        self._faults[name] = fault
        return _fault(name, fault)

    def _list_faults(self, _: str, words: Words) -> object:
        return {
            "faults": [_fault(name, fault) for name, fault in list(self._faults.items())],
            "fired": [asdict(each) for each in self._broker.faults.fired],
        }

    def _reset(self, _: str, words: Words) -> object:
        """Returns what there was, so that a test can end with one request."""
        found = self._list_faults("", words)
        self._broker.faults.reset()
        self._faults.clear()
        return found

    def _release_all(self, _: str, words: Words) -> None:
        self._broker.faults.release()

    def _release(self, name: str, words: Words) -> None:
        self._named(name).release()

    def _remove(self, name: str, words: Words) -> None:
        self._named(name).remove()
        self._faults.pop(name, None)

    def _named(self, name: str) -> Fault:
        found = self._faults.get(name)
        if found is None:
            raise _Refused(
                HTTPStatus.NOT_FOUND, f"There is no fault {name!r}; GET /faults has their ids."
            )
        return found

    # -- time

    def _now(self, _: str, words: Words) -> object:
        return {"now": self._broker.clock.now.isoformat()}

    def _advance(self, _: str, words: Words) -> object:
        given = checked(words, dict.fromkeys(_DURATIONS, float), "An advance")
        if not given:
            raise ConfigError('An advance needs a duration, such as {"ms": 60000}.')
        self._broker.clock.advance(**{_DURATIONS[name]: given[name] for name in given})
        return self._now("", words)

    def _go_to(self, _: str, words: Words) -> object:
        given = checked(words, {"moment": str}, "A moment")
        self._broker.clock.at(given.get("moment", ""))
        return self._now("", words)

    # -- assertions

    def _assert_exactly_once(self, _: str, words: Words) -> None:
        given = checked(words, {"input": str, "output": str}, "The question")
        if len(given) < 2:
            raise ConfigError('Name two topics: {"input": "payments", "output": "refunds"}.')
        self._broker.assert_exactly_once(given["input"], given["output"])


class _Refused(Exception):  # noqa: N818 - a refusal, with its status
    def __init__(self, status: HTTPStatus, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def _match(pattern: str, path: str) -> str | None:
    """The part of the path where the pattern has a star; None if they do not match."""
    before, star, after = pattern.partition("*")
    if not star:
        return "" if path == pattern else None
    part = path[len(before) : len(path) - len(after)]
    fits = path == before + part + after and part and "/" not in part
    return unquote(part) if fits else None


def _body(request: Request) -> Words:
    if not request.body:
        return {}
    try:
        given = json.loads(request.body)
    except (ValueError, RecursionError) as problem:
        raise ConfigError(f"The body is not JSON: {problem}.") from problem
    if not isinstance(given, dict):
        raise ConfigError("The body is not a JSON object.")
    return given


def _json(status: HTTPStatus, found: object) -> Answer:
    return Answer(json.dumps(found).encode() + b"\n", status, "application/json")


def _error(status: HTTPStatus, sentence: str) -> Answer:
    return _json(status, {"error": sentence})


def _fault(name: str, fault: Fault) -> dict[str, object]:
    return {
        "id": int(name),
        "fault": str(fault),
        "fired": fault.fired,
        "held": fault.held,
        "spent": fault.made.is_spent,
        "problem": f"It never fired: {fault.why()}" if fault.is_missing else None,
    }


def _records(records: Iterable[Record]) -> object:
    return {"records": [_record(each) for each in records]}


def _record(record: Record) -> dict[str, object]:
    """As `fencepost consume --json` has it: bytes that are no text are in base64."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        **_text("key", record.key),
        **_text("value", record.value),
        "headers": [{"key": name, **_text("value", value)} for name, value in record.headers],
        "fate": record.fate,
        "producer_id": record.producer_id,
    }


def _text(name: str, data: bytes | None) -> dict[str, str | None]:
    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(data or b"").decode()}


def _transactions(found: Iterable[TransactionView]) -> object:
    return {
        "transactions": [
            {**asdict(each), "partitions": [one._asdict() for one in each.partitions]}
            for each in found
        ]
    }
