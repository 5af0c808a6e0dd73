"""Client metrics subscriptions (KIP-714), stored and described but never served.

Kafka offers the telemetry APIs only where a plugin receives the metrics. Without one it stores
subscriptions, and clients never see them. fencepost has no such plugins.
"""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Final

from fencepost.base.failures import ConfigError
from fencepost.base.limits import (
    MAX_METRICS_INTERVAL_MS,
    MAX_METRICS_LIST_LENGTH,
    MIN_METRICS_INTERVAL_MS,
)
from fencepost.broker.settings.kinds import integer, settings_of, without_effect, words

if TYPE_CHECKING:
    from collections.abc import Mapping

NOT_COLLECTED: Final = "metrics that clients push are not collected"
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
"""The client attributes that a pattern of `match` may select by."""


class SubscriptionError(ConfigError):
    """An error that Kafka answers with INVALID_REQUEST; others are an INVALID_CONFIG."""


class ClientMetricsSettings:
    """The settings of a subscription."""

    interval_ms = without_effect(integer(300_000, NOT_COLLECTED))
    match = without_effect(words((), NOT_COLLECTED))
    metrics = without_effect(words((), NOT_COLLECTED))


CLIENT_METRICS_SETTINGS: Final = {each.name: each for each in settings_of(ClientMetricsSettings)}


def check_client_metrics(overrides: Mapping[str, str]) -> None:
    """Raises ConfigError unless a subscription may have these settings."""
    for name, given in overrides.items():
        setting = CLIENT_METRICS_SETTINGS.get(name)
        if setting is None:
            raise SubscriptionError(f"there is no client metrics setting {name!r}")
        if len(given) > MAX_METRICS_LIST_LENGTH:
            raise ConfigError(
                f"{name} has {len(given):,} characters; at most {MAX_METRICS_LIST_LENGTH:,} are "
                "allowed"
            )
        value = setting.parse(given)
        least, most = MIN_METRICS_INTERVAL_MS, MAX_METRICS_INTERVAL_MS
        if name == "interval.ms" and not least <= value <= most:
            raise SubscriptionError(
                f"interval.ms must be between {least} and {most}, not {given!r}"
            )
        if name == "match":
            for pattern in value:
                _check_pattern(pattern)


def _check_pattern(pattern: str) -> None:
    selector, _, expression = pattern.partition("=")
    if not expression or selector.strip() not in SELECTORS:
        raise ConfigError(
            f"match has {pattern!r}; write one of {', '.join(sorted(SELECTORS))}, then = and a "
            "regular expression"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of nested sets.
            re.compile(expression.strip())
    except (re.error, OverflowError, RecursionError) as problem:
        raise ConfigError(
            f"match has {pattern!r}, which is not a regular expression: {problem}"
        ) from problem
