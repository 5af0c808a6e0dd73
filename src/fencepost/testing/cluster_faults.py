"""Faults of the brokers of a cluster, with the words of `Faults`.

    cluster.faults.on("EndTxn", broker=cluster.coordinator_of("transactional", "a")).lose_reply()

A fault is for one broker, because "once" has no meaning for several that do not ask each other. It
is armed and counted in the broker's process (`cluster/broker/remote_faults.py`), and read back over
the control socket. It ends with that process: if the broker is killed or restarted before it has
fired, `check` says so, and does not take it for a fault that has fired.

Functions cannot be sent, so there is no `do`. A broker that dies cannot tell that it did so
because of a fault, so there is no `crash`: hold the request, and kill the broker.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn, Self

from fencepost.base.arguments import checked
from fencepost.base.failures import ConfigError, FencepostError
from fencepost.broker.faults import faults as mechanism
from fencepost.testing.faults import Fault, Faults, Fired, Function, Step, Target, checked_api
from fencepost.wire.apis import API

Ask = Callable[[int, dict[str, Any]], Any]
"""Sends a command to one broker; FencepostError if it does not answer."""

_PAUSE_SECONDS: Final = 0.01
"""Between two questions whether a fault has fired."""


class ClusterFault(Fault):
    """A fault of one broker."""

    def __init__(
        self, faults: Faults, made: mechanism.Fault, where: str, words: str, broker: int
    ) -> None:
        super().__init__(faults, made, f"{where} at broker {broker}", words)
        self.broker: Final = broker
        self.number = 0
        self.plain_words = words
        self._seed = 0
        self._held_there = 0
        self._lost: str | None = None

    def with_probability(self, probability: float, *, seed: int) -> Self:
        self._seed = seed
        return super().with_probability(probability, seed=seed)

    def described(self) -> dict[str, Any]:
        """The fault as plain data."""
        made = self.made
        return {
            "api": API[made.api].name,
            "action": made.action,
            "error": made.error.name,
            "delay_ms": made.delay_ms,
            "disconnect": made.disconnect,
            "match": {
                "client_id": made.client_id,
                "transactional_id": made.transactional_id,
                "group": made.group,
                "topic": made.topic,
                "version": made.version,
            },
            "first": made.first,
            "count": made.count,
            "probability": made.probability,
            "seed": self._seed,
        }

    @property
    def held(self) -> int:
        self._faults.refresh()
        return self._held_there

    def why(self) -> str:
        self._faults.refresh()
        return self._lost or super().why()

    def learn(self, counts: dict[str, int] | None, lost: str) -> None:
        """What its broker says of it; None if the broker does not have it."""
        self._lost = lost if counts is None else None
        self._held_there = 0 if counts is None else counts["held"]
        if counts is not None:
            self.made.seen, self.made.calls = counts["seen"], counts["calls"]
            self.made.fired = self._carried_out = counts["fired"]


class ClusterTarget(Target):
    """The requests at one broker that a fault is for."""

    def __init__(self, faults: Faults, api: Any, matched: dict[str, Any], broker: int) -> None:
        super().__init__(faults, api, matched)
        self._broker = broker

    def do(self, function: Function) -> NoReturn:
        """Refused: a function cannot be sent to another process."""
        raise ConfigError(
            "A function cannot run in a broker of a cluster, which is a process of its own: use "
            "another fault, or `fencepost.Broker`."
        )

    def crash(self, *, restart: bool = False) -> NoReturn:
        """Refused: a cluster has `kill`."""
        raise ConfigError(
            "A fault cannot crash a broker of a cluster: `hold()` the request, `wait()` for it, "
            f"and `cluster.kill({self._broker})`."
        )

    def _make(self, made: mechanism.Fault, where: str, words: str) -> Fault:
        return ClusterFault(self._faults, made, where, words, self._broker)


@checked
class ClusterFaults(Faults):
    """The faults of the brokers of one cluster."""

    def __init__(self, ask: Ask) -> None:
        super().__init__(_no_node, _no_node)
        self._ask = ask
        self._numbers = itertools.count(1)
        self._events: dict[int, list[dict[str, Any]]] = {}

    def on(
        self,
        api: str,
        *,
        broker: int | None = None,
        client_id: str | None = None,
        transactional_id: str | None = None,
        group: str | None = None,
        topic: str | None = None,
        version: int | None = None,
    ) -> Target:
        """The requests of an API, such as EndTxn, at one broker; all that is given has to match."""
        if broker is None:
            raise ConfigError(
                "A fault of a cluster is for one broker: add broker=2, or for example "
                'broker=cluster.coordinator_of("transactional", "refunds-0").'
            )
        matched = {
            "client_id": client_id,
            "transactional_id": transactional_id,
            "group": group,
            "topic": topic,
            "version": version,
        }
        return ClusterTarget(self, checked_api(api, version), matched, broker)

    def at(self, step: str) -> Step:
        """Refused: a cluster has `kill`."""
        raise ConfigError(
            "A broker of a cluster cannot crash at a step: use `fencepost.Broker`, or hold a "
            "request and `cluster.kill(...)`."
        )

    @property
    def fired(self) -> list[Fired]:
        """What has happened so far, in order; of each broker the last 1,000."""
        self.refresh()
        faults = {each.number: each for each in self._ours()}
        found = [(event, faults[number]) for number in faults for event in self._of(number)]
        found.sort(key=lambda each: int(each[0]["at_ms"]))
        return [
            Fired(API[fault.made.api].name, fault.plain_words, event["version"], event["client_id"])
            for event, fault in found
        ]

    @property
    def pending(self) -> list[Fault]:
        self.refresh()
        return super().pending

    def release(self) -> None:
        self.release_all(self._all())

    def arm(self, fault: Fault, step: str | None = None) -> Fault:
        assert isinstance(fault, ClusterFault)
        fault.number = next(self._numbers)
        self._send(fault)
        with self._changed:
            self._armed.append(fault)
        return fault

    def arm_again(self, fault: Fault) -> None:
        assert isinstance(fault, ClusterFault)
        self._send(fault)

    def remove(self, fault: Fault) -> None:
        assert isinstance(fault, ClusterFault)
        self.refresh()
        fault.optional()
        fault.made.count = fault.made.fired
        with contextlib.suppress(FencepostError):  # It is gone with its broker.
            self._ask(fault.broker, {"do": "unfault", "id": fault.number})

    def release_all(self, faults: Iterable[Fault]) -> None:
        numbers: dict[int, list[int]] = {}
        for fault in faults:
            assert isinstance(fault, ClusterFault)
            numbers.setdefault(fault.broker, []).append(fault.number)
        for broker, found in numbers.items():
            with contextlib.suppress(FencepostError):  # What it held is gone with it.
                self._ask(broker, {"do": "release", "ids": found})

    def wait_until(self, is_done: Callable[[], bool], timeout_seconds: float) -> bool:
        deadline = time.monotonic() + timeout_seconds
        while True:
            self.refresh()
            if is_done():
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(_PAUSE_SECONDS)

    def refresh(self) -> None:
        """Asks the brokers that have faults."""
        faults = self._ours()
        for broker in sorted({each.broker for each in faults}):
            counts, lost = self._counts(broker)
            for fault in faults:
                if fault.broker == broker:
                    fault.learn(counts["faults"].get(str(fault.number)), lost)
            for number in map(int, counts["faults"]):
                self._events[number] = [
                    each for each in counts["fired"] if each["number"] == number
                ]

    def _counts(self, broker: int) -> tuple[dict[str, Any], str]:
        """What a broker says of its faults, and why one is not among them."""
        try:
            found: dict[str, Any] = self._ask(broker, {"do": "faults"})
        except FencepostError as problem:
            return {"faults": {}, "fired": []}, f"the broker cannot tell: {problem}"
        return found, "the broker has been restarted since, and the fault is gone"

    def _ours(self) -> list[ClusterFault]:
        return [each for each in self._all() if isinstance(each, ClusterFault)]

    def _of(self, number: int) -> list[dict[str, Any]]:
        return self._events.get(number, [])

    def _send(self, fault: ClusterFault) -> None:
        command = {"do": "fault", "id": fault.number, "fault": fault.described()}
        self._ask(fault.broker, command)


def _no_node(_: object) -> NoReturn:
    raise AssertionError("a cluster's brokers are in other processes")
