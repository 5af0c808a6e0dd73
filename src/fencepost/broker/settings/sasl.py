"""The SASL settings of one listener: mechanisms, the users of PLAIN, the time between logins.

A setting is that of the listener or, without one, that of the broker:

    listener.name.NAME.sasl.enabled.mechanisms                    sasl.enabled.mechanisms
    listener.name.NAME.MECHANISM.connections.max.reauth.ms        connections.max.reauth.ms
    listener.name.NAME.plain.sasl.jaas.config                     none: the users of SCRAM

NAME is in lower case, as Kafka has it. So is MECHANISM, but here a name in capitals counts as well:
Kafka ignores it, and a session that should end would go on for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.base.failures import ConfigError
from fencepost.base.options import INT64_MAX, parse_whole

if TYPE_CHECKING:
    from fencepost.broker.settings.config import BrokerConfig
    from fencepost.client.secret import Secret

SUPPORTED: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
"""The mechanisms of a broker."""

_NOT_HERE: Final[Mapping[str, str]] = {
    "OAUTHBEARER": "this broker checks no tokens",
    "GSSAPI": "this broker does not speak Kerberos",
}

_PREFIX: Final = "listener.name."
_REAUTH: Final = "connections.max.reauth.ms"
_ENABLED: Final = "sasl.enabled.mechanisms"
_JAAS: Final = "sasl.jaas.config"


class SaslListener(NamedTuple):
    """The SASL settings of one listener."""

    name: str
    mechanisms: tuple[str, ...]
    reauth_ms: Mapping[str, int]
    """How long a session lasts, by mechanism; 0 for any time."""
    passwords: Mapping[str, Secret] | None
    """The users of PLAIN; None if they are those of SCRAM."""


def has_mechanisms(value: tuple[str, ...]) -> str | None:
    """Rejects mechanisms that this broker does not have."""
    for word in value:
        if word not in SUPPORTED:
            why = _NOT_HERE.get(word)
            return f"a list of {', '.join(SUPPORTED)}{f' ({why})' if why else ''}"
    return None if value else f"a list of {', '.join(SUPPORTED)}"


def is_sasl_setting(name: str) -> bool:
    """Whether a setting is one of these, of one listener."""
    if not name.startswith(_PREFIX):
        return False
    own = _own_part(name)
    if own in (_ENABLED, _REAUTH):
        return True
    mechanism, _, rest = own.partition(".")
    return mechanism.upper() in SUPPORTED and rest in (_REAUTH, _JAAS)


def check_sasl_setting(name: str, value: str) -> str | None:
    """A warning if the value has no effect; ConfigError unless it can be used."""
    own = _own_part(name)
    if own == _ENABLED:
        _parse_mechanisms(name, value)
    elif own.endswith(_REAUTH):
        _parse_reauth(name, value)
    elif own == f"plain.{_JAAS}":
        _parse_users(name, value)
    else:
        return f"{name} has no effect: the users of SCRAM are in the metadata log"
    return None


def sasl_listener(config: BrokerConfig, listener: str) -> SaslListener:
    """The settings of a listener."""
    prefix = f"{_PREFIX}{listener.lower()}."
    own = {
        _own_part(name): text
        for name, text in config.static.items()
        if name.lower().startswith(prefix)
    }
    enabled = config.sasl_enabled_mechanisms
    if _ENABLED in own:
        enabled = _parse_mechanisms(prefix + _ENABLED, own[_ENABLED])
    reauth_ms = {}
    for mechanism in enabled:
        text = own.get(f"{mechanism.lower()}.{_REAUTH}", own.get(_REAUTH))
        reauth_ms[mechanism] = (
            config.connections_max_reauth_ms
            if text is None
            else _parse_reauth(prefix + _REAUTH, text)
        )
    jaas = own.get(f"plain.{_JAAS}")
    users = None if jaas is None else _parse_users(f"{prefix}plain.{_JAAS}", jaas)
    return SaslListener(listener, enabled, reauth_ms, users)


def _own_part(name: str) -> str:
    return name[len(_PREFIX) :].partition(".")[2].lower()


def _parse_mechanisms(name: str, value: str) -> tuple[str, ...]:
    found = tuple(word.strip() for word in value.split(",") if word.strip())
    if problem := has_mechanisms(found):
        raise ConfigError(f"{name} is {value!r}; it must be {problem}")
    return found


def _parse_reauth(name: str, value: str) -> int:
    return parse_whole(name, value, least=0, most=INT64_MAX)


def _parse_users(name: str, value: str) -> Mapping[str, Secret]:
    # Here: most brokers have no such setting, and a start is short.
    from fencepost.client.jaas import parse_jaas_users

    try:
        return parse_jaas_users(value)
    except ConfigError as problem:
        raise ConfigError(str(problem).replace(_JAAS, name, 1)) from None
