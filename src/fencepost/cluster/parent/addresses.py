"""The addresses of the brokers of a cluster, from settings that are written for one broker.

`--metrics HOST:PORT` is the parent's; broker K has the K-th port after it.

`--listen HOST:PORT` is the first broker's address. The others listen on the ports after it; with
port 0 each takes a free one. So it is with every one of `listeners`, which have to be as far apart
as there are brokers. `advertised.listeners` has, for each name, an entry for each broker, or one
for the first, whose port rises with the brokers in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from fencepost.base.failures import ConfigError
from fencepost.broker.settings.config import BrokerConfig
from fencepost.broker.settings.listener import Address, Listener, parse_listener

MAX_PORT: Final = 65_535
MAX_BROKERS: Final = 64
"""More than a machine has use for: each broker is a process with its own memory."""


def settings_of_brokers(
    given: Mapping[str, str], broker_ids: list[int], unknown_ok: frozenset[str] = frozenset()
) -> list[dict[str, str]]:
    """The settings of each broker: those that are given, with its own id and addresses."""
    for name in ("node.id", "broker.id"):
        if name in given:
            raise ConfigError(f"{name} cannot be set for several brokers; they have ids from 1 on")
    count = len(broker_ids)
    advertised = _advertised(given.get("advertised.listeners", ""), count)
    first = {**given, "advertised.listeners": ",".join(advertised[0])}
    if not advertised[0]:
        del first["advertised.listeners"]
    config = BrokerConfig(first, unknown_ok, broker_count=count)
    listeners = [listener.at for listener in config.client_listeners]
    _check_ports(listeners, count)
    found = []
    for number, broker_id in enumerate(broker_ids):
        own = {**given, "node.id": str(broker_id)}
        own["listeners"] = ",".join(str(_risen(each, number)) for each in listeners)
        own.pop("advertised.listeners", None)
        if advertised[number]:
            own["advertised.listeners"] = ",".join(advertised[number])
        found.append(own)
    return found


def _risen(first: Listener, number: int) -> Listener:
    """The address that a later broker has; port 0 stays."""
    return first._replace(port=first.port + number if first.port else 0)


def _check_ports(listeners: Sequence[Listener], count: int) -> None:
    last: Listener | None = None
    for listener in sorted(listeners, key=lambda each: each.port):
        end = listener.port + count - 1
        if listener.port and end > MAX_PORT:
            raise ConfigError(
                f"{count} brokers from port {listener.port} on need ports up to {end}; "
                f"the last one is {MAX_PORT}"
            )
        if last is not None and last.port and listener.port < last.port + count:
            raise ConfigError(
                f"{count} brokers need {count} ports from {last.port} on for {last.name}, and "
                f"from {listener.port} on for {listener.name}: leave more room between them"
            )
        last = listener


def metrics_ports(at: Address | None, count: int) -> list[int]:
    """The ports for the metrics of the parent and of each broker; zeros for free ones."""
    if at is None or at.port == 0:
        return [0] * (count + 1)
    last = at.port + count
    if last > MAX_PORT:
        raise ConfigError(
            f"--metrics needs ports {at.port} to {last}, one for the parent and one for each of "
            f"the {count} brokers; the last one is {MAX_PORT}"
        )
    return list(range(at.port, last + 1))


def _advertised(text: str, count: int) -> list[list[str]]:
    """The advertised listeners of each broker; empty lists if none is given."""
    by_name: dict[str, list[Listener]] = {}
    for entry in filter(None, (each.strip() for each in text.split(","))):
        listener = parse_listener("advertised.listeners", entry)
        by_name.setdefault(listener.name, []).append(listener)
    found: list[list[str]] = [[] for _ in range(count)]
    for name, entries in by_name.items():
        if len(entries) not in (1, count):
            raise ConfigError(
                f"advertised.listeners has {len(entries)} entries for {name}; give one for each of "
                f"the {count} brokers, or one whose port rises by one per broker"
            )
        for number in range(count):
            own = entries[number] if len(entries) > 1 else _risen(entries[0], number)
            found[number].append(str(own))
    return found
