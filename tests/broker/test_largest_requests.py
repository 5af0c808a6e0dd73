"""The largest request of each API, from clients with and without rights: no turn of the loop does
more than a request of as many elements needs in all as one turn may serve.

Method: for each array of a request, one with as many items as a request may have. What a turn does
is counted as calls of our functions, without those that decode the request and encode the reply
(`MAX_REQUEST_ITEMS` bounds these). Time plays no part.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import pytest

from fencepost.base.limits import MAX_REQUEST_ITEMS
from fencepost.broker import turns
from fencepost.broker.controller import controller
from fencepost.broker.groups import slices
from fencepost.broker.handlers import HANDLERS, max_served_version
from fencepost.wire.apis import API, ApiKey
from fencepost.wire.plan import Place, Plan, default_of, plan_of
from tests.broker.node_stage import Line, Stage
from tests.broker.raw import frame_as_written
from tests.broker.security.secured import ALICE, Secured

pytestmark = pytest.mark.interpreted

SOME: Final = 200
"""A fifth of what a turn serves in a broker, so that the tests take a fifth of the time."""
LARGEST: Final = MAX_REQUEST_ITEMS // 5
ALLOWED: Final = 1.3
"""How much more a turn may do than a request of `SOME` elements: sizes of steps differ."""
FIXED: Final = 1_000
"""Calls that a request and a turn of the loop need in any case."""
CHEAP: Final = frozenset({"<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>", "<lambda>"})
"""Passes of the interpreter over a list, a tenth of a microsecond per element."""
BEFORE_LOGIN: Final = {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.API_VERSIONS}


OF_ADMINISTRATORS: Final = {
    ApiKey.CREATE_ACLS,
    ApiKey.DELETE_ACLS,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
}
"""Requests that take effect as a whole, in one batch of the metadata log. Their clients may alter
the cluster."""


class Case(NamedTuple):
    """An array of a request."""

    api: ApiKey
    version: int
    path: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.api.name}-{'.'.join(self.path)}"


def arrays(plan: Plan, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for place in plan.places:
        if not place.present:
            continue
        here = (*path, place.name)
        if place.is_array:
            yield here
        if place.kind == "struct":
            yield from arrays(plan.inner(place), here)


CASES: Final = [
    Case(api, version, path)
    for api in sorted(HANDLERS)
    if api not in BEFORE_LOGIN
    for version in [max_served_version(api)]
    for path in arrays(plan_of(API[api].request, version))
]

FLAGS: Final = {"acks": -1, "max_wait_ms": 0, "validate_only": True, "session_epoch": -1}


def made(plan: Plan, wide: tuple[str, ...], count: int, number: int = 0) -> Any:
    """A request whose array at `wide` has that many items; all around it have one."""
    values: dict[str, Any] = {}
    for place in plan.places:
        if place.present and place.tag is None:
            is_around = wide[:1] == (place.name,)
            inner = wide[1:] if is_around else ()
            if place.is_array:
                wanted = (count if len(wide) == 1 else 1) if is_around else 0
                values[place.name] = [one(plan, place, inner, count, n) for n in range(wanted)]
            elif place.name in FLAGS:
                values[place.name] = FLAGS[place.name]
            elif place.nullable and not is_around and place.kind != "string":
                values[place.name] = None
            else:
                values[place.name] = one(plan, place, inner, count, number)
    return plan.form(**values)


def one(plan: Plan, place: Place, wide: tuple[str, ...], count: int, number: int) -> Any:
    match place.kind:
        case "struct":
            return made(plan.inner(place), wide, count, number)
        case "string":
            return f"name-{number}"
        case "uuid":
            return number.to_bytes(16, "big")
        case "bool":
            return False
        case "bytes" | "records":
            return b""
        case "int8":
            return min(number, 1)
        case "int16":
            return 0
        case kind if place.is_array and kind in ("int32", "int64"):
            return number
        case _ if "partition" in place.name or "index" in place.name:
            return number
        case _:
            return default_of(plan.form, place.field)


class Meter:
    """Counts calls of our functions by turn of the loop."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.most = 0
        self.total = 0
        self._calls = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        loop: Any = self._stage.loop
        run_once = loop._run_once

        def turn() -> None:
            self._end_turn()
            run_once()

        loop._run_once = turn
        sys.setprofile(self._on_event)
        try:
            yield
        finally:
            sys.setprofile(None)
            del loop._run_once
            self._end_turn()

    def _end_turn(self) -> None:
        self.most = max(self.most, self._calls)
        self.total += self._calls
        self._calls = 0

    def _on_event(self, frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            code = frame.f_code
            if (
                "/fencepost/" in code.co_filename
                and "/wire/" not in code.co_filename
                and code.co_name not in CHEAP
            ):
                self._calls += 1


def serve(stage: Stage, line: Line, case: Case, count: int) -> Meter:
    """Sends a request with that many elements, and waits for the reply."""
    form = made(plan_of(API[case.api].request, case.version), case.path, count)
    frame = frame_as_written(case.api, case.version, form)
    meter = Meter(stage)
    with meter.running():
        line.send_bytes(frame)
        line.reply(case.api, case.version, 1)
    return meter


def check(stage: Stage, connect: Any, case: Case) -> None:
    serve(stage, connect(), case, 1)  # Modules are imported, and tables are filled.
    enough = serve(stage, connect(), case, SOME).total
    found = serve(stage, connect(), case, LARGEST - len(case.path))
    assert found.most <= enough * ALLOWED + FIXED, f"{found.most} of {found.total}, not {enough}"


@pytest.fixture
def counts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn ends after a number of elements, however fast the machine is."""
    monkeypatch.setattr(turns, "ELEMENTS_PER_TURN", SOME)
    monkeypatch.setattr(slices, "COMMITTED_PER_TURN", SOME)
    monkeypatch.setattr(controller, "DECIDED_AT_ONCE", SOME)
    monkeypatch.setattr(turns, "TURN_SECONDS", 1e9)
    monkeypatch.setattr(turns, "SHORT_TURN_SECONDS", 1e9)


@pytest.mark.usefixtures("counts_alone")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_client_without_rights_is_refused_over_many_turns(case: Case) -> None:
    with Secured() as stage:
        check(stage, lambda: stage.connect(ALICE), case)


@pytest.mark.usefixtures("counts_alone")
@pytest.mark.parametrize(
    "case", [case for case in CASES if case.api not in OF_ADMINISTRATORS], ids=str
)
def test_a_client_with_rights_is_served_over_many_turns(case: Case) -> None:
    with Secured() as stage:
        check(stage, stage.connect, case)
