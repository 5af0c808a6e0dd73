"""The configuration of a broker, and the precedence of its sources.

    the topic's value                           (topic settings only)
    the broker's dynamic value                  DYNAMIC_BROKER_CONFIG
    the cluster's dynamic value                 DYNAMIC_DEFAULT_BROKER_CONFIG
    the command line, or a properties file      STATIC_BROKER_CONFIG
    the table                                   DEFAULT_CONFIG

The first source with a value wins. Dynamic values are records of the metadata log;
`replace_dynamic` applies them while the broker runs. The texts are kept beside the values, because
DescribeConfigs returns the source of a value and the values that it overrides.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fencepost.base.failures import ConfigError
from fencepost.base.options import names_a_secret, suggest
from fencepost.base.properties import read_properties
from fencepost.broker.settings.kinds import Kind, Setting, Update, settings_of
from fencepost.broker.settings.listener import (
    ANY_HOST,
    PROTOCOLS,
    SERVED_PROTOCOLS,
    BrokerListener,
    Listener,
    is_loopback,
    parse_address,
    parse_listener,
)
from fencepost.broker.settings.sasl import check_sasl_setting, is_sasl_setting
from fencepost.broker.settings.tables import (
    BROKER_SYNONYMS,
    IGNORED,
    INTERNAL_SEGMENT_BYTES,
    PER_LISTENER,
    UNIT_MS,
    BrokerSettings,
    TopicSettings,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from fencepost.log.config import LogConfig

BROKER_SETTINGS: Final = {setting.name: setting for setting in settings_of(BrokerSettings)}
TOPIC_SETTINGS: Final = {setting.name: setting for setting in settings_of(TopicSettings)}


class Source(IntEnum):
    """The source of a value, with its number in DescribeConfigs."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    BROKER_LOGGER = 6


class Synonym(NamedTuple):
    """One candidate for the value of a setting, and its source."""

    name: str
    text: str | None
    source: Source


class BrokerConfig(BrokerSettings):
    """All broker settings of one node, read as attributes: `config.num_partitions`.

    `given` holds the user's settings, and `unknown_ok` the names from a properties file, where
    unknown ones are allowed. `warnings` has a sentence for each setting with no or limited effect.
    `broker_count` is the number of brokers of the cluster; some defaults depend on it.
    """

    def __init__(
        self,
        given: Mapping[str, str] | None = None,
        unknown_ok: Collection[str] = (),
        *,
        broker_count: int = 1,
    ) -> None:
        self.broker_count: Final = broker_count
        self._defaults: Final[Mapping[str, int]] = _defaults_of(broker_count)
        self.static: dict[str, str] = {}
        self.warnings: list[str] = []
        for name, value in (given or {}).items():
            if name in unknown_ok and not is_known(name):
                self.warnings.append(
                    f"{name} is ignored: there is no such broker setting"
                    f"{suggest(name, BROKER_SETTINGS)}"
                )
                continue
            self.static[name] = value
            if warning := review(name, value):
                self.warnings.append(warning)
        self.dynamic_default: dict[str, str] = {}
        self.dynamic_own: dict[str, str] = {}
        self._compute_values()
        self._warn_of_copies()
        self._warn_of_no_authorizer()
        self._check_identity()
        self.data: Final = self._find_data_folder()
        self.client_listeners = self._find_listeners()
        for listener in self.client_listeners:
            self._require_reachable(listener)
        """The listeners for clients; controller listeners are ignored."""
        self._check_listener_settings()

    def replace_dynamic(self, default: Mapping[str, str], own: Mapping[str, str]) -> None:
        """Replaces all dynamic values."""
        if self.dynamic_default == default and self.dynamic_own == own:
            return  # As at most starts, where there are none.
        self.dynamic_default = dict(default)
        self.dynamic_own = dict(own)
        self._compute_values()

    def _compute_values(self) -> None:
        """Computes every value again; dynamic texts were checked before they were stored."""
        for setting in BROKER_SETTINGS.values():
            given = next(self._texts_of(setting.name), None)
            if given is None:
                value = self._defaults.get(setting.name, setting.default)
            else:
                value = setting.parse(given)
            self.__dict__[setting.attribute] = value

    def _texts_of(self, name: str) -> Iterator[str]:
        levels = (self.dynamic_own, self.dynamic_default, self.static)
        return (level[name] for level in levels if name in level)

    def _warn_of_copies(self) -> None:
        """Adds one warning for all settings that assume several brokers."""
        above = [
            f"{setting.name}={self.static[setting.name]}"
            for setting in BROKER_SETTINGS.values()
            if setting.counts_replicas
            and setting.name in self.static
            and setting.parse(self.static[setting.name]) > self.broker_count
        ]
        if above:
            count = self.broker_count
            brokers = (
                "one broker keeps one copy of every partition"
                if count == 1
                else f"a partition of {count} brokers has {count} replicas at most"
            )
            self.warnings.append(
                f"{brokers}: {', '.join(above)} "
                f"{'has' if len(above) == 1 else 'have'} the effect of {count}"
            )

    def _warn_of_no_authorizer(self) -> None:
        """Adds a warning for rights that nothing checks."""
        for name in ("super.users", "allow.everyone.if.no.acl.found"):
            if name in self.static and not self.authorizer_class_name:
                self.warnings.append(
                    f"{name} has no effect: authorizer.class.name is empty, so any client may do "
                    "anything"
                )

    # -- identity and addresses

    def _check_identity(self) -> None:
        if "broker.id" not in self.static:
            return
        if "node.id" in self.static and self.broker_id != self.node_id:
            raise ConfigError(
                f"node.id is {self.node_id} and broker.id is {self.broker_id}; they must be equal"
            )
        if self.broker_id >= 0:
            self.__dict__["node_id"] = self.broker_id

    def _find_data_folder(self) -> str:
        folders = self.log_dirs if self.log_dirs is not None else self.log_dir
        if len(folders) != 1 or not folders[0]:
            raise ConfigError(
                f"log.dirs names {len(folders)} folders; fencepost uses one: choose it with "
                "--data DIR"
            )
        return folders[0]

    def _find_listeners(self) -> tuple[BrokerListener, ...]:
        found = self._parse_listeners("listeners", self.listeners)
        if not found:
            raise ConfigError("listeners has no client address; choose one with --listen HOST:PORT")
        advertised = self._parse_listeners("advertised.listeners", self.advertised_listeners or ())
        if len(found) == 1 and len(advertised) == 1:
            # Its name does not matter then, and --listen may have replaced several listeners.
            advertised = {name: advertised.popitem()[1] for name in found}
        if len(found) > 1 and (unknown := advertised.keys() - found.keys()):
            raise ConfigError(
                f"advertised.listeners has {', '.join(sorted(unknown))}, which listeners does "
                f"not have: {', '.join(found)}"
            )
        return tuple(
            BrokerListener(listener, advertised.get(name, listener), self._protocol_of(listener))
            for name, listener in found.items()
        )

    def _require_reachable(self, listener: BrokerListener) -> None:
        """Raises ConfigError if clients are told an address that they cannot connect to."""
        advertised = listener.advertised
        if advertised.host not in ANY_HOST:
            return
        security = (
            ""
            if self.is_protected(listener)
            else (
                f"{advertised} can be reached from other machines, and anybody there could use it: "
                "give the listener TLS and passwords or certificates (docs/guide/security.md), or "
                "add --allow-remote if the network is yours. And "
            )
        )
        raise ConfigError(
            f"{security}clients cannot connect to {advertised}; advertise a name of this machine: "
            f"--config advertised.listeners={advertised.name}://NAME:{advertised.port or 'PORT'}"
        )

    def _parse_listeners(self, setting: str, texts: Iterable[str]) -> dict[str, Listener]:
        """The client listeners by name; those of controllers are ignored."""
        controllers = self._controller_listeners()
        found: dict[str, Listener] = {}
        for text in texts:
            listener = parse_listener(setting, text)
            if listener.name in found:
                raise ConfigError(
                    f"{setting} has {listener.name} twice; give each listener a name of its own, "
                    "with a protocol in listener.security.protocol.map"
                )
            if listener.name not in controllers:
                found[listener.name] = listener
        return found

    def _controller_listeners(self) -> set[str]:
        return _names_of(self.static.get("controller.listener.names", ""))

    def _check_listener_settings(self) -> None:
        """Settings that no listener has: a typo in them would leave a listener unprotected."""
        known = {each.name.lower() for each in self.client_listeners}
        known |= {name.lower() for name in self._controller_listeners()}
        for name in self.static:
            if listener_setting(name) is None:
                continue
            listener = name[len(LISTENER_PREFIX) :].partition(".")[0]
            if listener not in known:
                raise ConfigError(
                    f"{name} is for a listener that listeners does not have; its name is written "
                    f"in lower case here: {', '.join(sorted(each for each in known if each))}"
                )
        self._warn_of_idle("TLS", "ssl.", [e for e in self.client_listeners if e.is_tls])
        self._warn_of_idle(
            "SASL", "sasl.", [e for e in self.client_listeners if e.protocol.startswith("SASL")]
        )
        self._warn_of_client_auth()

    def _warn_of_idle(self, what: str, prefix: str, having: Sequence[BrokerListener]) -> None:
        """Adds a warning for settings of TLS or SASL if their listener, or every one, has none."""
        names = {each.name.lower() for each in having}

        def is_idle(name: str) -> bool:
            own = listener_setting(name)
            if own is None:
                return name in BROKER_SETTINGS and name.startswith(prefix) and not names
            is_meant = is_sasl_setting(name) if what == "SASL" else own.startswith(prefix)
            return is_meant and name[len(LISTENER_PREFIX) :].partition(".")[0] not in names

        if idle := [name for name in self.static if is_idle(name)]:
            self.warnings.append(
                f"no effect, as the listener does not use {what} (listeners, "
                f"listener.security.protocol.map): {', '.join(idle)}"
            )

    def _warn_of_client_auth(self) -> None:
        """Adds a warning for SASL_SSL listeners that ask for no certificate, as Kafka does."""
        for name, own in self._without_client_auth().items():
            if self.ssl_client_auth != "none":
                self.warnings.append(
                    f"ssl.client.auth is for SSL listeners, so clients of {name} need no "
                    f"certificate; {own}={self.ssl_client_auth} asks for one"
                )

    def _protocol_of(self, listener: Listener) -> str:
        pairs = (pair.partition(":") for pair in self.listener_security_protocol_map.split(","))
        protocols = {name.strip().upper(): protocol.strip() for name, _, protocol in pairs}
        protocol = protocols.get(listener.name)
        if protocol is None:
            raise ConfigError(f"listener.security.protocol.map has no protocol for {listener.name}")
        protocol = protocol.upper()
        if protocol not in SERVED_PROTOCOLS:
            known = "is not supported" if protocol in PROTOCOLS else "is not a security protocol"
            raise ConfigError(
                f"listener {listener} uses {protocol}, which {known}; "
                f"choose from {', '.join(SERVED_PROTOCOLS)}"
            )
        return protocol

    def is_protected(self, listener: BrokerListener) -> bool:
        """Whether a listener encrypts, and knows who its clients are."""
        if listener.protocol == "SASL_SSL":
            return True
        return listener.is_tls and self.client_auth(listener.name) == "required"

    def client_auth(self, name: str) -> str:
        """ssl.client.auth of a listener.

        As in Kafka (KIP-684) the one without a prefix is for SSL listeners: clients of SASL_SSL
        log in, and have no certificates.
        """
        if name in self._without_client_auth():
            return "none"
        found: str = self.of_listener(name, "ssl.client.auth")
        return found

    def _without_client_auth(self) -> dict[str, str]:
        """The listeners with TLS and SASL that lack a setting of their own, and its name."""
        own = {
            each.name: f"{LISTENER_PREFIX}{each.name.lower()}.ssl.client.auth"
            for each in self.client_listeners
            if each.protocol == "SASL_SSL"
        }
        return {name: setting for name, setting in own.items() if setting not in self.static}

    def of_listener(self, name: str, setting: str) -> Any:
        """The value of a setting for one listener: with the listener's prefix, or without."""
        found = BROKER_SETTINGS[setting]
        own = self.static.get(f"{LISTENER_PREFIX}{name.lower()}.{setting}")
        return self.__dict__[found.attribute] if own is None else found.parse(own)

    def keep_to_loopback(self) -> str | None:
        """Narrows "every address" to an advertised loopback name, and returns a warning.

        Kafka's own properties file listens on every address and advertises localhost. None if there
        is nothing to narrow: clients on other machines are intended, and the operator must allow
        them.
        """
        narrowed = {
            each.name: each.at._replace(host=each.advertised.host)
            for each in self.client_listeners
            if each.at.host in ANY_HOST
            and is_loopback(each.advertised.host)
            and not self.is_protected(each)
        }
        if not narrowed:
            return None
        before, self.client_listeners = (
            self.client_listeners,
            tuple(
                each._replace(at=narrowed.get(each.name, each.at)) for each in self.client_listeners
            ),
        )
        first = next(each.at for each in before if each.name in narrowed)
        return (
            f"listeners has {first}, every address of this machine. It has no authentication, so "
            f"the broker listens on {narrowed[first.name].host} only; --allow-remote opens it to "
            "other machines"
        )

    @property
    def listener(self) -> Listener:
        """Where the first listener listens."""
        return self.client_listeners[0].at

    @property
    def listen_host(self) -> str:
        """The host of the first listener; empty for every address of the machine."""
        return self.listener.host

    def advertised(self, bound_port: int) -> tuple[str, int]:
        """The advertised host and port of the first listener, which is bound to this port."""
        found = self.client_listeners[0].advertised
        return found.host, found.port or bound_port

    # -- descriptions

    def text_of(self, name: str) -> str | None:
        """The value of a setting as Kafka's tools print it; of an ignored one, the user's text."""
        setting = BROKER_SETTINGS.get(name)
        if setting is None:
            return next(self._texts_of(name), None)
        return setting.show(self.__dict__[setting.attribute])

    def synonyms(self, name: str) -> list[Synonym]:
        """All candidates for the value of `name`, the strongest first (KIP-226)."""
        names = next((group for group in BROKER_SYNONYMS.values() if group[0] == name), (name,))
        levels = (
            (self.dynamic_own, Source.DYNAMIC_BROKER),
            (self.dynamic_default, Source.DYNAMIC_DEFAULT_BROKER),
            (self.static, Source.STATIC_BROKER),
            (_DEFAULT_TEXTS, Source.DEFAULT),
        )
        found = [
            Synonym(
                each, self._default_text(each) if level is _DEFAULT_TEXTS else level[each], source
            )
            for level, source in levels
            for each in names
            if each in level
        ]
        # A synonym in the first place means that the setting itself has no value: Kafka returns
        # none then.
        while found and found[0].name != name:
            found.pop(0)
        return found

    def _default_text(self, name: str) -> str:
        default = self._defaults.get(name)
        return _DEFAULT_TEXTS[name] if default is None else str(default)

    def given_names(self) -> set[str]:
        """All names that were set, including ignored ones."""
        return {*self.static, *self.dynamic_default, *self.dynamic_own}


_DEFAULT_TEXTS: Final[Mapping[str, str]] = {
    name: text
    for name, setting in BROKER_SETTINGS.items()
    if (text := setting.show(setting.default)) is not None
}


# -- several brokers
# --------------------------------------------------------------------------------------------------


MAX_DEFAULT_REPLICAS: Final = 3
"""Replicas of a partition if no request says how many, and if there are that many brokers."""


def _defaults_of(broker_count: int) -> dict[str, int]:
    """The defaults that depend on the number of brokers; those of the table are for one."""
    if broker_count == 1:
        return {}
    replicas = min(MAX_DEFAULT_REPLICAS, broker_count)
    return {
        "default.replication.factor": replicas,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": default_min_insync(broker_count),
    }


def default_min_insync(broker_count: int) -> int:
    """min.insync.replicas of the internal topics: one of three brokers may be dead."""
    return 2 if broker_count >= MAX_DEFAULT_REPLICAS else 1


# -- names
# --------------------------------------------------------------------------------------------------


def review(name: str, value: str) -> str | None:
    """A warning for a setting without effect; ConfigError for a name that Kafka does not have."""
    if own := listener_setting(name):
        if is_sasl_setting(name):
            return check_sasl_setting(name, value)
        if own not in PER_LISTENER:
            return f"{name} has no effect: {own} cannot be set for one listener"
        BROKER_SETTINGS[own].parse(value)
        return None
    if setting := BROKER_SETTINGS.get(name):
        return setting.warn_of(value)
    if reason := why_ignored(name):
        return f"{name} has no effect: {reason}"
    raise ConfigError(f"there is no broker setting {name!r}{suggest(name, BROKER_SETTINGS)}")


LISTENER_PREFIX: Final = "listener.name."


def listener_setting(name: str) -> str | None:
    """The setting `ssl.client.auth` in `listener.name.inside.ssl.client.auth`; None elsewhere."""
    if not name.startswith(LISTENER_PREFIX):
        return None
    return name[len(LISTENER_PREFIX) :].partition(".")[2] or None


def is_sensitive(name: str) -> bool:
    """Whether the value of a setting must not be shown."""
    setting = BROKER_SETTINGS.get(listener_setting(name) or name)
    if setting is not None:
        return setting.kind is Kind.PASSWORD
    return names_a_secret(name)


def is_known(name: str) -> bool:
    """Whether Kafka has a broker setting of this name, supported here or not."""
    if listener_setting(name) is not None:
        return True
    return name in BROKER_SETTINGS or why_ignored(name) is not None


def why_ignored(name: str) -> str | None:
    """Why a setting of Kafka's has no effect; None for any other name."""
    for known, reason in IGNORED.items():
        if name == known or (known.endswith(".") and name.startswith(known)):
            return reason
    return None


def check_dynamic(name: str, value: str | None, *, for_cluster: bool) -> None:
    """Raises ConfigError unless the value can be set at run time; None deletes the setting."""
    setting = BROKER_SETTINGS.get(name)
    if setting is None:
        if listener_setting(name) in PER_LISTENER or is_sasl_setting(name):
            raise ConfigError(f"{name} cannot be changed while the broker runs")
        if value is not None:
            review(name, value)
            if is_sensitive(name):
                raise ConfigError(
                    f"{name} is a secret and has no effect here; the metadata log would have kept "
                    "it for everybody who can read the data directory"
                )
        return
    if setting.update is Update.READ_ONLY:
        raise ConfigError(f"{name} cannot be changed while the broker runs")
    if setting.update is Update.PER_BROKER and for_cluster:
        raise ConfigError(f"{name} can be changed per broker only, not for the cluster")
    if value is not None:
        setting.parse(value)


# -- topics
# --------------------------------------------------------------------------------------------------


class TopicConfig(TopicSettings):
    """All settings of one topic, read as attributes: `config.retention_ms`."""

    def __init__(self, broker: BrokerConfig, overrides: Mapping[str, str]) -> None:
        for name, setting in TOPIC_SETTINGS.items():
            given = overrides.get(name)
            value = _from_broker(broker, setting) if given is None else setting.parse(given)
            self.__dict__[setting.attribute] = value
        self.rolled_at_bytes: Final = int(overrides.get(INTERNAL_SEGMENT_BYTES, self.segment_bytes))

    def text_of(self, name: str) -> str | None:
        """The value of a setting as Kafka's tools print it."""
        setting = TOPIC_SETTINGS[name]
        return setting.show(self.__dict__[setting.attribute])


def _from_broker(broker: BrokerConfig, setting: Setting[Any]) -> Any:
    """The broker's value, for a topic without an override."""
    for name in BROKER_SYNONYMS.get(setting.name, ()):
        value = broker.__dict__[BROKER_SETTINGS[name].attribute]
        if value is not None:
            unit = UNIT_MS.get(name.rpartition(".")[2])
            value = value * unit if unit else value
            # Any negative retention means forever; Kafka shows -1.
            return max(value, -1) if setting.name == "retention.ms" else value
    return setting.default


def check_topic_overrides(broker: BrokerConfig, overrides: Mapping[str, str]) -> None:
    """Raises ConfigError unless a topic may have these settings."""
    for name, value in overrides.items():
        if name == INTERNAL_SEGMENT_BYTES:
            _INTERNAL_SEGMENT_SIZE.parse(value)
        elif name not in TOPIC_SETTINGS:
            raise ConfigError(f"there is no topic setting {name!r}{suggest(name, TOPIC_SETTINGS)}")
    config = TopicConfig(broker, overrides)
    if config.remote_storage_enable:
        raise ConfigError("remote.storage.enable must be false: all storage is local")
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise ConfigError(
            f"min.compaction.lag.ms must be at most max.compaction.lag.ms "
            f"({config.max_compaction_lag_ms}), not {config.min_compaction_lag_ms}"
        )


def topic_warnings(overrides: Mapping[str, str]) -> list[str]:
    """A warning for each setting without effect."""
    known = ((TOPIC_SETTINGS.get(name), value) for name, value in overrides.items())
    return [warning for setting, value in known if setting and (warning := setting.warn_of(value))]


_INTERNAL_SEGMENT_SIZE: Final[Setting[int]] = Setting(
    Kind.INT, 0, "", lambda size: None if size > 0 else "at least 1", Update.READ_ONLY, None
)
_INTERNAL_SEGMENT_SIZE.name = INTERNAL_SEGMENT_BYTES


def topic_log_config(broker: BrokerConfig, overrides: Mapping[str, str]) -> LogConfig:
    """The settings of a topic that its logs use."""
    # Here, because it imports all of `log`, and the parent of a cluster reads settings first.
    from fencepost.log.config import LogConfig

    topic = TopicConfig(broker, overrides)
    return LogConfig(
        segment_bytes=topic.rolled_at_bytes,
        segment_ms=topic.segment_ms,
        segment_jitter_ms=topic.segment_jitter_ms,
        index_interval_bytes=topic.index_interval_bytes,
        segment_index_bytes=topic.segment_index_bytes,
        retention_ms=topic.retention_ms,
        retention_bytes=topic.retention_bytes,
        cleanup_policy=frozenset(topic.cleanup_policy),
        delete_retention_ms=topic.delete_retention_ms,
        min_cleanable_dirty_ratio=topic.min_cleanable_dirty_ratio,
        min_compaction_lag_ms=topic.min_compaction_lag_ms,
        max_compaction_lag_ms=topic.max_compaction_lag_ms,
        max_message_bytes=topic.max_message_bytes,
        message_timestamp_type=topic.message_timestamp_type,
        message_timestamp_before_max_ms=topic.message_timestamp_before_max_ms,
        message_timestamp_after_max_ms=topic.message_timestamp_after_max_ms,
        compression_type=topic.compression_type,
    )


# -- loading
# --------------------------------------------------------------------------------------------------


def given_settings(
    *,
    settings: Iterable[str] = (),
    settings_file: str | None = None,
    listen: str | None = None,
    data: str | None = None,
    durability: str | None = None,
) -> tuple[dict[str, str], frozenset[str]]:
    """The settings of a command line: options win over `settings`, these over the file.

    Also the names that come from the file alone: unknown ones among them are allowed.
    """
    given = {} if settings_file is None else _read_file(settings_file)
    said = read_assignments(settings)
    unknown_ok = frozenset(given.keys() - said.keys())
    given.update(said)
    if listen is not None:
        name = _listener_name(given)
        parse_address("--listen", listen)  # For its message: it has no listener name.
        given["listeners"] = f"{name}://{listen}"
    if data is not None:
        given.pop("log.dir", None)
        given["log.dirs"] = data
    if durability is not None:
        given["durability"] = durability
    return given, unknown_ok


def _listener_name(given: Mapping[str, str]) -> str:
    """The name for the --listen address: that of the first listener that it replaces.

    So another port is never a listener without the TLS and the login of the settings.
    """
    controllers = _names_of(given.get("controller.listener.names", ""))
    for setting in ("advertised.listeners", "listeners"):
        for text in given.get(setting, "").split(","):
            name = text.partition("://")[0].strip()
            if name and name.upper() not in controllers:
                return name
    return "PLAINTEXT"


def _names_of(text: str) -> set[str]:
    return {name.strip().upper() for name in text.split(",")}


def _read_file(path: str) -> dict[str, str]:
    try:
        with open(path, encoding="utf-8") as file:
            return read_properties(file.read())
    except OSError as problem:
        reason: object = problem.strerror
    except UnicodeDecodeError:
        reason = "it is not UTF-8 text"
    except ConfigError as problem:
        reason = problem
    raise ConfigError(f"{path} cannot be read: {reason}")


def read_assignments(assignments: Iterable[str]) -> dict[str, str]:
    """Parses `name=value` texts of a command line; a later one wins."""
    found = {}
    for assignment in assignments:
        name, separator, value = assignment.partition("=")
        if not separator or not name.strip():
            raise ConfigError(f"{assignment!r} is not a setting; write name=value")
        found[name.strip()] = value.strip()
    return found
