"""Subscriptions to metrics that clients push (KIP-714), kept and shown as a Kafka broker without a receiver does.

Kafka offers the telemetry APIs to clients only where a plugin takes the metrics; without one it
keeps subscriptions and no client ever hears of them. There are no such plugins here.
"""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Final

from fencepost.base.failures import ConfigError
from fencepost.broker.settings.kinds import integer, settings_of, without_effect, words

if TYPE_CHECKING:
    from collections.abc import Mapping

NOT_COLLECTED: Final = "metrics that clients push are not collected"
SHORTEST_INTERVAL_MS: Final = 100
LONGEST_INTERVAL_MS: Final = 3_600_000
LONGEST_LIST: Final = 4_000
"""Characters of `match` or `metrics`. Patterns are compiled while everybody waits, at up to 8 µs a
character."""
SELECTORS: Final = frozenset(
    {
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    }
)
"""What a pattern of `match` may look at."""


class SubscriptionError(ConfigError):
    """What Kafka answers with INVALID_REQUEST; the rest of a bad subscription is an INVALID_CONFIG."""


class ClientMetricsSettings:
    """What a subscription has."""

    interval_ms = without_effect(integer(300_000, NOT_COLLECTED))
    match = without_effect(words((), NOT_COLLECTED))
    metrics = without_effect(words((), NOT_COLLECTED))


CLIENT_METRICS_SETTINGS: Final = {each.name: each for each in settings_of(ClientMetricsSettings)}


def check_client_metrics(overrides: Mapping[str, str]) -> None:
    """ConfigError unless a subscription may have these settings."""
    for name, given in overrides.items():
        setting = CLIENT_METRICS_SETTINGS.get(name)
        if setting is None:
            raise SubscriptionError(f"there is no client metrics setting {name!r}")
        if len(given) > LONGEST_LIST:
            raise ConfigError(f"{name} has {len(given):,} characters; {LONGEST_LIST:,} are enough")
        value = setting.parse(given)
        if name == "interval.ms" and not SHORTEST_INTERVAL_MS <= value <= LONGEST_INTERVAL_MS:
            raise SubscriptionError(
                f"interval.ms must be between {SHORTEST_INTERVAL_MS} and {LONGEST_INTERVAL_MS}, "
                f"not {given!r}"
            )
        if name == "match":
            for pattern in value:
                _check_pattern(pattern)


def _check_pattern(pattern: str) -> None:
    selector, _, expression = pattern.partition("=")
    if not expression or selector.strip() not in SELECTORS:
        raise ConfigError(
            f"match has {pattern!r}; a pattern is one of {', '.join(sorted(SELECTORS))}, then = "
            "and "
            "a regular expression"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's opinion about sets within sets.
            re.compile(expression.strip())
    except (re.error, OverflowError, RecursionError) as problem:
        raise ConfigError(f"match has {pattern!r}, which cannot be read: {problem}") from problem
