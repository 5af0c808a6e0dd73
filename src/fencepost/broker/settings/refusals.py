"""What a broker refuses before it starts.

A module of its own that imports little: the parent of a cluster checks this before it starts the
brokers, and they wait for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.base.failures import ConfigError
from fencepost.broker.settings.listener import Address, is_loopback, parse_address

if TYPE_CHECKING:
    from fencepost.broker.settings.config import BrokerConfig


def refuse_optimised_python() -> None:
    """Raises ConfigError under python -O."""
    if not __debug__:
        raise ConfigError(
            "The broker does not run under python -O: its assertions protect the data."
        )


def metrics_address(text: str | None, *, allow_remote: bool) -> Address | None:
    """Parses --metrics; ConfigError for an address beyond loopback unless that is allowed."""
    if text is None:
        return None
    address = parse_address("--metrics", text)
    refuse_remote(address.host, allow_remote)
    return address


def refuse_open_listeners(config: BrokerConfig, *, allow_remote: bool) -> None:
    """Raises ConfigError for a listener that strangers on other machines could use."""
    for listener in config.client_listeners:
        if not config.is_protected(listener):
            refuse_remote(listener.at.host, allow_remote)


def refuse_remote(host: str, allow_remote: bool) -> None:
    """Raises ConfigError for an address beyond loopback, unless `allow_remote` is set."""
    if allow_remote or is_loopback(host):
        return
    raise ConfigError(
        f"{host or 'Every address of this machine'} can be reached from other machines, "
        "and anybody there could use it: it does not have both TLS and authentication "
        "(docs/guide/security.md). Give it both, listen on 127.0.0.1 or [::1], or add "
        "--allow-remote if the network is yours."
    )
