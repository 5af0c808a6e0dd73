"""The addresses of the brokers of a cluster, from settings that are written for one broker.

`--metrics HOST:PORT` is the parent's; broker K has the K-th port after it.

`--listen HOST:PORT` is the first broker's address. The others listen on the ports after it; with
port 0 each takes a free one. `advertised.listeners` has an entry for each broker, or one for the
first, whose port rises with the brokers in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fencepost.base.failures import ConfigError
from fencepost.broker.settings.config import BrokerConfig
from fencepost.broker.settings.listener import Address, parse_listener

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
    advertised = _advertised(given.get("advertised.listeners", ""), len(broker_ids))
    first = {**given, "advertised.listeners": advertised[0]}
    if not advertised[0]:
        del first["advertised.listeners"]
    listener = BrokerConfig(first, unknown_ok, broker_count=len(broker_ids)).listener
    found = []
    for number, broker_id in enumerate(broker_ids):
        own = {**given, "node.id": str(broker_id)}
        port = listener.port + number if listener.port else 0
        if port > MAX_PORT:
            raise ConfigError(
                f"{len(broker_ids)} brokers from port {listener.port} on need ports up to {port}; "
                f"the last one is {MAX_PORT}"
            )
        own["listeners"] = str(listener._replace(port=port))
        own.pop("advertised.listeners", None)
        if advertised[number]:
            own["advertised.listeners"] = advertised[number]
        found.append(own)
    return found


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


def _advertised(text: str, count: int) -> list[str]:
    """The advertised listener of each broker; empty texts if none is given."""
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    if not entries:
        return [""] * count
    if len(entries) == count:
        return entries
    if len(entries) != 1:
        raise ConfigError(
            f"advertised.listeners has {len(entries)} entries; give one for each of the {count} "
            "brokers, or one whose port rises by one per broker"
        )
    first = parse_listener("advertised.listeners", entries[0])
    return [
        str(first._replace(port=first.port + number if first.port else 0))
        for number in range(count)
    ]
