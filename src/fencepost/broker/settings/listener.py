"""Listener addresses in Kafka's syntax: `PLAINTEXT://127.0.0.1:9092`.

A listener has a name, under which its other settings are found, and a security protocol. Clients
get the addresses of the listener that they are connected to, of every broker: `advertised`.
"""

from __future__ import annotations

import ipaddress
from typing import Final, NamedTuple

from fencepost.base.failures import ConfigError

MAX_PORT: Final = 65_535

PROTOCOLS: Final = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}
"""Kafka's security protocols and their numbers in the metadata log."""

SERVED_PROTOCOLS: Final = tuple(PROTOCOLS)
"""The protocols that a listener may have here."""

TLS_PROTOCOLS: Final = ("SSL", "SASL_SSL")

ANY_HOST: Final = ("", "0.0.0.0", "::")
"""Hosts that mean every address of the machine; clients cannot connect to them."""


class Listener(NamedTuple):
    """One address, to listen on or to advertise."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


class BrokerListener(NamedTuple):
    """One listener of this broker."""

    at: Listener
    """Where it listens; port 0 chooses a free one."""
    advertised: Listener
    """What its clients are told; port 0 stands for the one that it listens on."""
    protocol: str

    @property
    def name(self) -> str:
        """The name of the listener."""
        return self.at.name

    @property
    def is_tls(self) -> bool:
        """Whether its connections are encrypted."""
        return self.protocol in TLS_PROTOCOLS


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host; False for names other than localhost."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Address(NamedTuple):
    """A host and a port."""

    host: str
    port: int


def parse_address(option: str, text: str) -> Address:
    """Parses the value of an option such as `127.0.0.1:9092`; port 0 stands for a free one."""
    try:
        found = parse_listener(option, f"PLAINTEXT://{text}")
    except ConfigError as problem:
        raise ConfigError(
            f"{option} is {text!r}; it must look like 127.0.0.1:9092 or [::1]:9092, "
            f"with a port of at most {MAX_PORT}"
        ) from problem
    return Address(found.host, found.port)


def parse_listener(setting: str, text: str) -> Listener:
    """Parses `PLAINTEXT://127.0.0.1:9092`; an empty host stands for all addresses."""
    name, separator, address = text.strip().partition("://")
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"{setting} has {text!r}; put the IPv6 address in brackets")
    if not (separator and name and colon and port.isascii() and port.isdigit()):
        raise ConfigError(f"{setting} has {text!r}; it must look like PLAINTEXT://host:port")
    if int(port) > MAX_PORT:
        raise ConfigError(f"{setting} has {text!r}; the port must be at most {MAX_PORT}")
    return Listener(name.upper(), host, int(port))
