"""The tables of settings against Apache Kafka's own, and how values are parsed and chosen.

`kafka_settings.tsv` has the names, types, defaults and update modes of the ConfigDefs of Apache
Kafka 4.3.0.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fencepost.base.failures import ConfigError
from fencepost.base.options import refuse_secret_argument
from fencepost.broker.settings.config import (
    BROKER_SETTINGS,
    TOPIC_SETTINGS,
    BrokerConfig,
    Source,
    Synonym,
    TopicConfig,
    check_dynamic,
    check_topic_overrides,
    given_settings,
    is_sensitive,
    read_assignments,
    topic_log_config,
    why_ignored,
)
from fencepost.broker.settings.kinds import Update, parse_overrides
from fencepost.broker.settings.listener import Listener
from fencepost.broker.settings.tables import BROKER_SYNONYMS, IGNORED, PER_LISTENER
from fencepost.records.trace import _is_secret_setting as is_secret_setting

SOURCE = Path(__file__).parents[3] / "src" / "fencepost"


class Row(NamedTuple):
    table: str
    name: str
    type: str
    default: str = ""
    update: str = ""


def kafka(table: str) -> list[Row]:
    path = Path(__file__).with_name("kafka_settings.tsv")
    with path.open(encoding="utf-8", newline="") as file:
        rows = [Row(*line) for line in csv.reader(file, delimiter="\t")]
    return [row for row in rows if row.table == table]


BROKER_ROWS = {row.name: row for row in kafka("broker")}
TOPIC_ROWS = {row.name: row for row in kafka("topic")}
OWN = {
    "durability",
    "allow.everyone.if.no.acl.found",
    "queued.max.response.bytes",
    "super.users",
    "record.validation.enable",
    "transaction.recovery.ongoing",
}


def load_config(**given: Any) -> BrokerConfig:
    return BrokerConfig(*given_settings(**given))


# -- the tables


def test_every_broker_setting_is_kafkas_or_listed_as_ours() -> None:
    assert BROKER_SETTINGS.keys() - BROKER_ROWS.keys() == OWN


def test_every_broker_setting_of_kafka_is_honoured_ignored_or_refused() -> None:
    lost = [
        name for name in BROKER_ROWS if name not in BROKER_SETTINGS and why_ignored(name) is None
    ]
    assert lost == []


def test_every_reason_for_ignoring_a_setting_is_used() -> None:
    names = [name for name in BROKER_ROWS if name not in BROKER_SETTINGS]
    idle = [
        known
        for known in IGNORED
        if not any(n == known or (known.endswith(".") and n.startswith(known)) for n in names)
    ]
    assert idle == []


@pytest.mark.parametrize("name", sorted(BROKER_SETTINGS.keys() - OWN))
def test_a_broker_setting_has_kafkas_type_default_and_update_mode(name: str) -> None:
    setting, row = BROKER_SETTINGS[name], BROKER_ROWS[name]
    assert setting.kind.name == row.type
    shown = setting.show(setting.default)
    is_kafkas = ("null" if shown is None else shown) == row.default
    assert is_kafkas == (setting.why_differs is None)
    assert setting.update.value in (row.update, Update.READ_ONLY.value)


def test_every_secret_of_kafka_is_known_as_one_whether_it_has_an_effect_or_not() -> None:
    passwords = [row.name for row in BROKER_ROWS.values() if row.type == "PASSWORD"]
    assert len(passwords) > 5
    for name in passwords:
        for known in (name, f"listener.name.inside.{name}"):
            assert is_sensitive(known)
            if "certificate" not in name:  # Certificates are public.
                assert is_secret_setting(known)
                with pytest.raises(ConfigError, match="is a secret"):
                    refuse_secret_argument(known, "--config-file")


def test_limits_of_addresses_are_written_as_in_kafka() -> None:
    assert parse_overrides("127.0.0.1:200, [::1]:5,") == {"127.0.0.1": 200, "::1": 5}
    assert parse_overrides("0:0:0::1:5,::ffff:10.0.0.7:2") == {"::1": 5, "10.0.0.7": 2}


@pytest.mark.parametrize("text", ["127.0.0.1", "client.example:2", "10.0.0.7:-1", "10.0.0.7:x"])
def test_a_limit_that_no_client_would_match_is_refused(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"max\.connections\.per\.ip\.overrides .*127\.0\.0\.1:200"
    ):
        BrokerConfig({"max.connections.per.ip.overrides": text})


def test_only_these_settings_differ_from_kafka() -> None:
    assert {s.name for s in BROKER_SETTINGS.values() if s.why_differs} - OWN == {
        "node.id",
        "listeners",
        "log.dir",
        "max.connections",
        "queued.max.request.bytes",
        "sasl.enabled.mechanisms",
        "sasl.server.max.receive.size",
        "ssl.keystore.type",
        "ssl.truststore.type",
        "group.initial.rebalance.delay.ms",
        "group.max.size",
        "offsets.topic.replication.factor",
        "transaction.state.log.replication.factor",
        "transaction.state.log.min.isr",
    }


def test_the_topic_settings_are_kafkas() -> None:
    ours = {s.name: (s.kind.name, s.show(s.default)) for s in TOPIC_SETTINGS.values()}
    assert ours == {row.name: (row.type, row.default) for row in TOPIC_ROWS.values()}


def test_the_synonyms_are_kafkas() -> None:
    theirs = {row.name: tuple(row.type.split(",")) for row in kafka("synonym")}
    remote = {"local.retention.ms", "local.retention.bytes"}
    assert {k: v for k, v in theirs.items() if k not in remote} == BROKER_SYNONYMS


def test_every_default_passes_its_own_check() -> None:
    for setting in [*BROKER_SETTINGS.values(), *TOPIC_SETTINGS.values()]:
        shown = setting.show(setting.default)
        if shown is not None:
            assert setting.parse(shown) == setting.default


def test_every_setting_has_a_description() -> None:
    for setting in [*BROKER_SETTINGS.values(), *TOPIC_SETTINGS.values()]:
        assert setting.doc.endswith(".")


# -- values


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("num.partitions", " 3 ", 3),
        ("num.partitions", "+3", 3),
        ("log.retention.ms", "-1", -1),
        ("log.retention.bytes", "9223372036854775807", 2**63 - 1),
        ("auto.create.topics.enable", "FALSE", False),
        ("log.cleaner.min.cleanable.ratio", "1e-1", 0.1),
        ("log.cleanup.policy", " compact , delete ", ("compact", "delete")),
        ("log.cleanup.policy", "", ()),
        ("broker.rack", " r ", "r"),
    ],
)
def test_values_are_parsed_as_kafka_parses_them(name: str, text: str, value: object) -> None:
    config = BrokerConfig({name: text})
    assert getattr(config, name.replace(".", "_")) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("num.partitions", "0"),
        ("num.partitions", "x"),
        ("num.partitions", ""),
        ("num.partitions", "1_000"),
        ("num.partitions", "0x10"),
        ("num.partitions", "1.0"),
        ("num.partitions", "٣"),
        ("num.partitions", "2147483648"),
        ("log.retention.bytes", "9223372036854775808"),
        ("auto.create.topics.enable", "yes"),
        ("log.cleaner.min.cleanable.ratio", "2"),
        ("log.cleaner.min.cleanable.ratio", "nan"),
        ("log.cleanup.policy", "never"),
        ("log.cleanup.policy", "Compact"),
        ("compression.type", "none"),
        ("log.segment.bytes", "1000"),
        ("durability", "maybe"),
        ("offsets.topic.replication.factor", "0"),
        ("default.replication.factor", "0"),
        ("min.insync.replicas", "0"),
    ],
)
def test_an_invalid_value_is_refused_with_the_name_of_its_setting(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=name):
        BrokerConfig({name: text})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", "compact" + " " * 500_000 + "x"),
        ("min.cleanable.dirty.ratio", "1" * 500_000 + "x"),
    ],
)
def test_no_value_that_a_client_sets_takes_for_ever(name: str, value: str) -> None:
    """A topic's settings are checked in the loop; the test's timeout would tell."""
    with pytest.raises(ConfigError, match=name):
        check_topic_overrides(BrokerConfig({}), {name: value})


def test_an_unknown_name_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"num\.partition'.*num\.partitions"):
        BrokerConfig({"num.partition": "3"})


def test_an_unknown_name_without_a_similar_one_is_also_refused() -> None:
    with pytest.raises(ConfigError, match="xyzzy"):
        BrokerConfig({"xyzzy": "3"})


def test_a_setting_that_does_not_apply_only_warns() -> None:
    config = BrokerConfig({"num.io.threads": "8", "process.roles": "broker", "num.partitions": "2"})
    assert [warning.split()[0] for warning in config.warnings] == [
        "num.io.threads",
        "process.roles",
    ]
    assert config.num_partitions == 2


def test_a_setting_without_effect_warns_when_it_is_changed() -> None:
    unchanged = {"log.flush.interval.messages": str(2**63 - 1), "log.preallocate": "false"}
    assert BrokerConfig(unchanged).warnings == []
    changed = {"log.flush.interval.messages": "1", "log.preallocate": "true"}
    assert BrokerConfig(changed).warnings == [
        "log.flush.interval.messages has no effect: durability decides when logs are synced",
        "log.preallocate has no effect: files grow as they are written",
    ]


MADE_FOR_THREE_BROKERS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}


def test_a_file_for_three_brokers_starts_one_broker_with_one_warning() -> None:
    config = BrokerConfig(MADE_FOR_THREE_BROKERS)
    (warning,) = config.warnings
    assert warning.startswith("one broker keeps one copy of every partition: ")
    for name, value in MADE_FOR_THREE_BROKERS.items():
        assert f"{name}={value}" in warning
        assert config.text_of(name) == value, "it is described as given"
    assert BrokerConfig(dict.fromkeys(MADE_FOR_THREE_BROKERS, "1")).warnings == []


@pytest.mark.parametrize(
    ("broker_count", "factor", "least"), [(1, 1, 1), (2, 2, 1), (3, 3, 2), (5, 3, 2)]
)
def test_the_defaults_of_replication_follow_the_number_of_brokers(
    broker_count: int, factor: int, least: int
) -> None:
    config = BrokerConfig(broker_count=broker_count)
    assert config.default_replication_factor == factor
    assert config.offsets_topic_replication_factor == factor
    assert config.transaction_state_log_replication_factor == factor
    assert config.transaction_state_log_min_isr == least
    assert config.min_insync_replicas == 1
    assert config.synonyms("default.replication.factor") == [
        Synonym("default.replication.factor", str(factor), Source.DEFAULT)
    ]


def test_a_given_replication_factor_wins_over_the_default_of_a_cluster() -> None:
    config = BrokerConfig({"default.replication.factor": "1"}, broker_count=3)
    assert config.default_replication_factor == 1
    assert config.synonyms("default.replication.factor") == [
        Synonym("default.replication.factor", "1", Source.STATIC_BROKER),
        Synonym("default.replication.factor", "3", Source.DEFAULT),
    ]


def test_only_more_replicas_than_brokers_get_a_warning() -> None:
    assert BrokerConfig(MADE_FOR_THREE_BROKERS, broker_count=3).warnings == []
    (warning,) = BrokerConfig(MADE_FOR_THREE_BROKERS, broker_count=2).warnings
    assert warning == (
        "a partition of 2 brokers has 2 replicas at most: default.replication.factor=3, "
        "offsets.topic.replication.factor=3, transaction.state.log.replication.factor=3 "
        "have the effect of 2"
    )


STOCK_KRAFT_FILE = """
# The settings of the file that Apache Kafka 4.3 comes with.
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=2
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""


def test_kafkas_default_settings_file_is_accepted_unchanged(tmp_path: Path) -> None:
    settings = tmp_path / "server.properties"
    settings.write_text(STOCK_KRAFT_FILE)
    config = load_config(settings_file=str(settings))
    assert config.listener == ("PLAINTEXT", "", 9092)
    assert config.data == "/tmp/kraft-combined-logs"
    assert [warning.split(" has no effect: ")[0] for warning in config.warnings] == [
        "process.roles",
        "controller.quorum.bootstrap.servers",
        "inter.broker.listener.name",
        "controller.listener.names",
        "num.network.threads",
        "num.io.threads",
        "socket.send.buffer.bytes",
        "socket.receive.buffer.bytes",
        "num.recovery.threads.per.data.dir",
        "share.coordinator.state.topic.replication.factor",
        "share.coordinator.state.topic.min.isr",
    ]
    # It listens on every address and advertises localhost. Without --allow-remote the broker
    # listens on localhost only.
    warning = config.keep_to_loopback()
    assert warning is not None
    assert "--allow-remote" in warning
    assert (config.listen_host, config.advertised(9092)) == ("localhost", ("localhost", 9092))


def test_an_address_advertised_to_other_machines_is_not_restricted_to_loopback() -> None:
    config = BrokerConfig(
        {"listeners": "PLAINTEXT://:9092", "advertised.listeners": "PLAINTEXT://kafka.test:9092"}
    )
    assert config.keep_to_loopback() is None
    assert config.listen_host == ""


def test_an_unknown_name_is_a_warning_in_a_file_and_an_error_elsewhere(
    tmp_path: Path,
) -> None:
    settings = tmp_path / "server.properties"
    settings.write_text("zookeeper.connect=localhost:2181\nnum.partition=3\n")
    config = load_config(settings_file=str(settings))
    assert config.warnings == [
        "zookeeper.connect is ignored: there is no such broker setting",
        ("num.partition is ignored: there is no such broker setting; did you mean num.partitions?"),
    ]
    assert config.num_partitions == 1
    with pytest.raises(ConfigError, match=r"'num\.partition'"):
        load_config(settings_file=str(settings), settings=["num.partition=3"])


def test_a_security_setting_is_also_refused_in_a_file(tmp_path: Path) -> None:
    settings = tmp_path / "server.properties"
    settings.write_text("authorizer.class.name=org.apache.kafka.Authorizer\n")
    with pytest.raises(ConfigError, match=r"authorizer\.class\.name must be org\.apache"):
        load_config(settings_file=str(settings))


def test_one_of_several_listeners_is_chosen_on_the_command_line(tmp_path: Path) -> None:
    settings = tmp_path / "server.properties"
    settings.write_text(
        "listeners=INSIDE://:9092,OUTSIDE://:9093\n"
        "advertised.listeners=INSIDE://10.0.0.1:9092,OUTSIDE://kafka.test:9093\n"
        "listener.security.protocol.map=INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT\n"
        "log.dirs=/one,/two\n"
    )
    with pytest.raises(ConfigError, match="choose it with --data"):
        load_config(settings_file=str(settings))
    everywhere = load_config(settings_file=str(settings), data="/one")
    assert [str(each.at) for each in everywhere.client_listeners] == [
        "INSIDE://:9092",
        "OUTSIDE://:9093",
    ]
    config = load_config(settings_file=str(settings), data="/one", listen="127.0.0.1:0")
    assert config.listener == ("INSIDE", "127.0.0.1", 0)
    assert config.advertised(5) == ("10.0.0.1", 9092)


def test_every_setting_not_marked_as_without_effect_is_used() -> None:
    must_be_off = {"remote.storage.enable"}
    tables = ("broker/settings/tables.py", "broker/settings/config.py", "log/config.py")
    sources = [path for path in SOURCE.rglob("*.py") if not str(path).endswith(tables)]
    tls = (SOURCE / "broker/security/tls.py").read_text()
    read = set(re.findall(r"\.([a-z]\w+)", "".join(path.read_text() for path in sources)))
    read.update(["message_timestamp_type", "log_dir", "log_dirs", "listeners", "broker_id"])
    read.update(["advertised_listeners", "listener_security_protocol_map"])
    # Those of one listener are read by name: `of_listener(name, "ssl.cipher.suites")`.
    by_name = {name for name in PER_LISTENER if f'"{name}"' in tls}
    # `BrokerConfig.client_auth` reads this one.
    by_name |= {"ssl.client.auth"} if "config.client_auth(" in tls else set()
    # The form of a keystore has one value, which the check of the setting allows.
    by_name |= {"ssl.keystore.type", "ssl.truststore.type"}
    behind_topics = {name for names in BROKER_SYNONYMS.values() for name in names}
    idle = {
        setting.name
        for setting in (*BROKER_SETTINGS.values(), *TOPIC_SETTINGS.values())
        if setting.attribute not in read
        and setting.name not in by_name
        and setting.why_no_effect is None
        and setting.name not in behind_topics
    }
    assert idle == must_be_off


# -- identity and addresses


def test_the_defaults_listen_on_loopback() -> None:
    config = BrokerConfig()
    assert (config.listen_host, config.listener.port) == ("127.0.0.1", 9092)
    assert config.advertised(9092) == ("127.0.0.1", 9092)
    assert config.data == "fencepost-data"
    assert config.node_id == 1


@pytest.mark.parametrize(
    ("text", "listener"),
    [
        ("PLAINTEXT://localhost:0", Listener("PLAINTEXT", "localhost", 0)),
        ("PLAINTEXT://[::1]:9092", Listener("PLAINTEXT", "::1", 9092)),
        (" plaintext://a.b:65535 ", Listener("PLAINTEXT", "a.b", 65535)),
    ],
)
def test_a_listener_is_parsed(text: str, listener: Listener) -> None:
    assert BrokerConfig({"listeners": text}).listener == listener


@pytest.mark.parametrize(
    "text",
    [
        "localhost:9092",
        "PLAINTEXT://localhost",
        "PLAINTEXT://localhost:x",
        "PLAINTEXT://::1:9092",
        "PLAINTEXT://a:65536",
        "MINE://localhost:9092",
        "",
        "PLAINTEXT://a:1,PLAINTEXT://b:2",
        "PLAINTEXT://:9092",
        "PLAINTEXT://0.0.0.0:9092",
    ],
)
def test_a_listener_that_cannot_be_served_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        BrokerConfig({"listeners": text})


def test_a_listener_may_have_any_name_that_maps_to_plaintext() -> None:
    config = BrokerConfig(
        {"listeners": "MINE://localhost:1", "listener.security.protocol.map": "MINE:PLAINTEXT"}
    )
    assert config.listener.name == "MINE"


def test_listeners_of_kafka_controllers_are_ignored() -> None:
    config = BrokerConfig(
        {
            "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        }
    )
    assert config.listener.port == 9092


def test_clients_get_the_advertised_address() -> None:
    config = BrokerConfig(
        {
            "listeners": "PLAINTEXT://0.0.0.0:0",
            "advertised.listeners": "PLAINTEXT://broker.example:0",
        }
    )
    assert config.listen_host == "0.0.0.0"
    assert config.advertised(4711) == ("broker.example", 4711)


def test_the_old_name_of_the_node_id_still_works() -> None:
    assert BrokerConfig({"broker.id": "7"}).node_id == 7
    assert BrokerConfig({"broker.id": "7", "node.id": "7"}).node_id == 7
    with pytest.raises(ConfigError, match="must be equal"):
        BrokerConfig({"broker.id": "7", "node.id": "8"})


def test_only_one_data_directory_is_allowed() -> None:
    assert BrokerConfig({"log.dir": "/a"}).data == "/a"
    assert BrokerConfig({"log.dir": "/a", "log.dirs": "/b"}).data == "/b"
    for several in ("/a,/b", ""):
        with pytest.raises(ConfigError, match=r"log\.dirs"):
            BrokerConfig({"log.dirs": several})


# -- sources


def test_dynamic_values_override_static_ones_and_can_be_removed() -> None:
    config = BrokerConfig({"message.max.bytes": "1000"})
    config.replace_dynamic({"message.max.bytes": "2000"}, {})
    assert config.message_max_bytes == 2000
    config.replace_dynamic({"message.max.bytes": "2000"}, {"message.max.bytes": "3000"})
    assert config.message_max_bytes == 3000
    assert config.synonyms("message.max.bytes") == [
        Synonym("message.max.bytes", "3000", Source.DYNAMIC_BROKER),
        Synonym("message.max.bytes", "2000", Source.DYNAMIC_DEFAULT_BROKER),
        Synonym("message.max.bytes", "1000", Source.STATIC_BROKER),
        Synonym("message.max.bytes", "1048588", Source.DEFAULT),
    ]
    config.replace_dynamic({}, {})
    assert config.message_max_bytes == 1000


def test_synonyms_are_listed_from_the_requested_name_on() -> None:
    config = BrokerConfig({"log.retention.minutes": "5"})
    assert config.synonyms("log.retention.ms") == []
    config.replace_dynamic({}, {"log.retention.ms": "7"})
    assert [s.name for s in config.synonyms("log.retention.ms")] == [
        "log.retention.ms",
        "log.retention.minutes",
        "log.retention.hours",
    ]


@pytest.mark.parametrize(
    ("given", "retention_ms"),
    [
        ({}, 604_800_000),
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.minutes": "3", "log.retention.ms": "4"}, 4),
        ({"log.retention.hours": "-1"}, -1),
    ],
)
def test_a_topic_uses_the_broker_synonym_with_the_highest_precedence(
    given: dict[str, str], retention_ms: int
) -> None:
    assert TopicConfig(BrokerConfig(given), {}).retention_ms == retention_ms
    assert TopicConfig(BrokerConfig(given), {"retention.ms": "9"}).retention_ms == 9


def test_a_changed_broker_setting_applies_to_topics_without_their_own() -> None:
    broker = BrokerConfig()
    broker.replace_dynamic({"log.cleanup.policy": "compact", "log.roll.ms": "5"}, {})
    config = topic_log_config(broker, {"segment.ms": "6"})
    assert config.cleanup_policy == {"compact"}
    assert config.segment_ms == 6
    assert topic_log_config(broker, {}).segment_ms == 5


def test_every_setting_of_a_log_comes_from_its_topic() -> None:
    overrides = {
        "segment.bytes": "2000000",
        "retention.bytes": "5",
        "max.message.bytes": "7",
        "message.timestamp.type": "LogAppendTime",
        "min.cleanable.dirty.ratio": "0.25",
        "preallocate": "true",
        "cleanup.policy": "",
    }
    config = topic_log_config(BrokerConfig(), overrides)
    assert config.segment_bytes == 2_000_000
    assert config.retention_bytes == 5
    assert config.max_message_bytes == 7
    assert config.is_append_time
    assert config.min_cleanable_dirty_ratio == 0.25
    assert config.cleanup_policy == frozenset()


def test_tests_may_use_small_segments() -> None:
    overrides = {"internal.segment.bytes": "100"}
    check_topic_overrides(BrokerConfig(), overrides)
    assert topic_log_config(BrokerConfig(), overrides).segment_bytes == 100


@pytest.mark.parametrize(
    "overrides",
    [
        {"nonsense": "1"},
        {"retention.ms": "x"},
        {"retention.ms": "-2"},
        {"segment.bytes": "1000"},
        {"internal.segment.bytes": "0"},
        {"internal.segment.bytes": "x"},
        {"min.compaction.lag.ms": "100", "max.compaction.lag.ms": "10"},
        {"remote.storage.enable": "true"},
    ],
)
def test_invalid_topic_settings_are_refused(overrides: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        check_topic_overrides(BrokerConfig(), overrides)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num.partitions", "3"),
        ("log.retention.ms", "x"),
        ("nonsense", "1"),
        # Dynamic in Kafka. Here they are read at the start, and must not seem to count.
        ("max.connections", "3"),
        ("max.connections.per.ip", "3"),
        ("max.connection.creation.rate", "3"),
        ("ssl.client.auth", "required"),
        # Without effect, and a secret: the metadata log must not keep it.
        ("ssl.keystore.password", "secret"),
        ("sasl.jaas.config", "secret"),
    ],
)
def test_a_setting_that_is_not_dynamic_is_refused_by_a_running_broker(
    name: str, value: str
) -> None:
    with pytest.raises(ConfigError, match=name):
        check_dynamic(name, value, for_cluster=False)


@pytest.mark.parametrize(("name", "value"), [("log.retention.ms", "5"), ("num.io.threads", "8")])
def test_a_dynamic_setting_is_accepted_by_a_running_broker(name: str, value: str) -> None:
    check_dynamic(name, value, for_cluster=True)
    check_dynamic(name, None, for_cluster=False)


# -- files and command lines


def test_options_override_settings_and_settings_override_the_file(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        "num.partitions=2\nlog.dir=/file\nlog.roll.hours=3\nlisteners=PLAINTEXT://a:1\n"
    )
    config = load_config(
        settings=["num.partitions=5", "log.dir=/settings", "durability=os"],
        settings_file=str(file),
        listen="[::1]:0",
        data="/option",
        durability="fsync",
    )
    assert (config.num_partitions, config.log_roll_hours) == (5, 3)
    assert (config.listen_host, config.listener.port) == ("::1", 0)
    assert (config.data, config.durability) == ("/option", "fsync")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["listeners=SASL_SSL://127.0.0.1:9093"], ("SASL_SSL", "SASL_SSL")),
        (
            ["listeners=IN://a:1", "listener.security.protocol.map=IN:SASL_PLAINTEXT"],
            ("IN", "SASL_PLAINTEXT"),
        ),
        (
            ["controller.listener.names=CTL", "listeners=CTL://:9093,SSL://:9092"],
            ("SSL", "SSL"),
        ),
        (["listeners=SSL://a:1", "advertised.listeners=SASL_SSL://b:1"], ("SASL_SSL", "SASL_SSL")),
        ([], ("PLAINTEXT", "PLAINTEXT")),
    ],
)
def test_another_address_keeps_the_protocol(settings: list[str], expected: tuple[str, str]) -> None:
    (found,) = load_config(settings=settings, listen="127.0.0.1:9095").client_listeners
    assert (found.name, found.protocol) == expected
    assert (found.at.host, found.at.port) == ("127.0.0.1", 9095)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file or directory"),
        (b"\xec\xff", "not UTF-8 text"),
        (b"log.dir=\\u12", "four hexadecimal digits"),
    ],
)
def test_an_unreadable_file_is_reported_with_its_name_and_the_reason(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    file = tmp_path / "server.properties"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"server\.properties cannot be read: .*{reason}"):
        load_config(settings_file=str(file))


@pytest.mark.parametrize("listen", ["localhost", "localhost:x", "127.0.0.1:65536", "::1:9092"])
def test_an_invalid_listen_address_is_refused_with_the_name_of_the_option(listen: str) -> None:
    with pytest.raises(ConfigError, match=rf"--listen is '{listen}'.* \[::1\]:9092"):
        load_config(listen=listen)


def test_listening_on_every_address_needs_an_advertised_name() -> None:
    with pytest.raises(ConfigError, match=r"--config advertised\.listeners=PLAINTEXT://NAME:9092"):
        load_config(listen="0.0.0.0:9092")
    settings = ["advertised.listeners=PLAINTEXT://here.example:9092"]
    config = load_config(listen="0.0.0.0:9092", settings=settings)
    assert config.advertised(9092) == ("here.example", 9092)


def test_a_setting_without_a_value_is_refused() -> None:
    assert read_assignments(["a = b=c", "a=d"]) == {"a": "d"}
    for wrong in ("a", "=b"):
        with pytest.raises(ConfigError, match="name=value"):
            read_assignments([wrong])
