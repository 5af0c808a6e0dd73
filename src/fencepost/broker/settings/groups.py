"""Settings of consumer, share and streams groups (KIP-848, KIP-932, KIP-1071), as in Kafka 4.3.

fencepost serves classic groups, which have no settings. These are checked, stored and described as
in Kafka, and have no effect. The default of a group setting is the broker setting of the same name
with the prefix `group.`. The broker's bounds (`group.consumer.min.session.timeout.ms`) apply.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from fencepost.base.failures import ConfigError
from fencepost.base.options import must_be, suggest
from fencepost.broker.settings.config import Source, Synonym
from fencepost.broker.settings.kinds import (
    at_least,
    flag,
    integer,
    one_of,
    settings_of,
    text,
    without_effect,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fencepost.broker.settings.config import BrokerConfig

CONSUMER: Final = "the consumer protocol of KIP-848 is not served"
SHARE: Final = "share groups are not served"
STREAMS: Final = "the streams protocol is not served"

_DURATION: Final = re.compile(
    r"by_duration:\+?P(?=.)(\+?\d+D)?(T(?=.)(\+?\d+H)?(\+?\d+M)?(\+?\d+([.,]\d{0,9})?S)?)?",
    re.ASCII | re.IGNORECASE,
)


def _offset_reset(value: str) -> str | None:
    if value in ("earliest", "latest") or _DURATION.fullmatch(value):
        return None
    return "earliest, latest or by_duration:PnDTnHnMn.nS"


class GroupSettings:
    """The settings of a group."""

    consumer_assignment_interval_ms = without_effect(integer(1_000, CONSUMER, at_least(0)))
    consumer_heartbeat_interval_ms = without_effect(integer(5_000, CONSUMER, at_least(1)))
    consumer_session_timeout_ms = without_effect(integer(45_000, CONSUMER, at_least(1)))
    share_assignment_interval_ms = without_effect(integer(1_000, SHARE, at_least(0)))
    share_auto_offset_reset = without_effect(text("latest", SHARE, _offset_reset))
    share_delivery_count_limit = without_effect(integer(5, SHARE, at_least(2)))
    share_heartbeat_interval_ms = without_effect(integer(5_000, SHARE, at_least(1)))
    share_isolation_level = without_effect(
        text("read_uncommitted", SHARE, one_of("read_committed", "read_uncommitted"))
    )
    share_partition_max_record_locks = without_effect(integer(2_000, SHARE, at_least(100)))
    share_record_lock_duration_ms = without_effect(integer(30_000, SHARE, at_least(1_000)))
    share_renew_acknowledge_enable = without_effect(flag(True, SHARE))
    share_session_timeout_ms = without_effect(integer(45_000, SHARE, at_least(1)))
    streams_assignment_interval_ms = without_effect(integer(1_000, STREAMS, at_least(0)))
    streams_heartbeat_interval_ms = without_effect(integer(5_000, STREAMS, at_least(1)))
    streams_initial_rebalance_delay_ms = without_effect(integer(3_000, STREAMS, at_least(0)))
    streams_num_standby_replicas = without_effect(integer(0, STREAMS, at_least(0)))
    streams_session_timeout_ms = without_effect(integer(45_000, STREAMS, at_least(1)))


GROUP_SETTINGS: Final = {setting.name: setting for setting in settings_of(GroupSettings)}

_GROUPS_ONLY: Final = frozenset(
    {"share.auto.offset.reset", "share.isolation.level", "share.renew.acknowledge.enable"}
)
"""Settings without a broker default."""

_BOUNDS: Final[Mapping[str, tuple[tuple[str, int] | None, tuple[str, int]]]] = {
    **{
        f"{family}.{name}": (
            (f"group.{family}.min.{name}", low),
            (f"group.{family}.max.{name}", high),
        )
        for family in ("consumer", "share", "streams")
        for name, low, high in (
            ("assignment.interval.ms", 0, 15_000),
            ("heartbeat.interval.ms", 5_000, 15_000),
            ("session.timeout.ms", 45_000, 60_000),
        )
    },
    "share.delivery.count.limit": (
        ("group.share.min.delivery.count.limit", 2),
        ("group.share.max.delivery.count.limit", 10),
    ),
    "share.partition.max.record.locks": (
        ("group.share.min.partition.max.record.locks", 100),
        ("group.share.max.partition.max.record.locks", 4_000),
    ),
    "share.record.lock.duration.ms": (
        ("group.share.min.record.lock.duration.ms", 15_000),
        ("group.share.max.record.lock.duration.ms", 60_000),
    ),
    "streams.num.standby.replicas": (None, ("group.streams.max.standby.replicas", 2)),
}
"""The broker settings that bound a group setting, with their defaults."""


def check_group_settings(broker: BrokerConfig, overrides: Mapping[str, str]) -> None:
    """Raises ConfigError unless a group may have these settings."""
    for name, given in overrides.items():
        setting = GROUP_SETTINGS.get(name)
        if setting is None:
            raise ConfigError(f"there is no group setting {name!r}{suggest(name, GROUP_SETTINGS)}")
        value = setting.parse(given)
        low, high = _BOUNDS.get(name, (None, None))
        if low is not None and value < _bound(broker, *low):
            raise must_be(name, f"at least {_bound(broker, *low)} ({low[0]})", given)
        if high is not None and value > _bound(broker, *high):
            raise must_be(name, f"at most {_bound(broker, *high)} ({high[0]})", given)


def _bound(broker: BrokerConfig, name: str, default: int) -> int:
    """A bound from the broker's settings; its text is used nowhere else and was never checked."""
    given = (broker.text_of(name) or "").strip()
    return int(given) if re.fullmatch(r"[+-]?[0-9]{1,10}", given) else default


def group_synonyms(broker: BrokerConfig, overrides: Mapping[str, str], name: str) -> list[Synonym]:
    """All sources of a group setting, the strongest first; the first one is in effect."""
    setting = GROUP_SETTINGS[name]
    default_name = name if name in _GROUPS_ONLY else f"group.{name}"
    own = []
    if name in overrides:
        own = [Synonym(name, setting.show(setting.parse(overrides[name])), Source.GROUP)]
    default = Synonym(default_name, setting.show(setting.default), Source.DEFAULT)
    return [*own, *broker.synonyms(default_name), default]
