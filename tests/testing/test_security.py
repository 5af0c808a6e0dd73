"""`fencepost.Broker(security=...)`: users, TLS and ACLs for a test."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fencepost
from fencepost import Security
from fencepost.base.failures import ConfigError, FencepostError
from fencepost.base.ids import TopicPartition
from fencepost.base.scram import MECHANISMS
from fencepost.client.admin import NewTopic
from fencepost.client.blocking import Cluster, connect
from fencepost.client.failures import AuthenticationFailed, ClientError
from fencepost.client.users import remove_user
from fencepost.records.opened import Record
from fencepost.testing.security import Secured
from tests.broker.security.test_secrets import arguments_of
from tests.cli.running import Commands
from tests.testing.test_embedded import in_a_child

ORDERS = TopicPartition("orders", 0)


def logged_in(broker: fencepost.Broker | fencepost.Cluster, user: str, **changes: str) -> Cluster:
    found = {**broker.client_config(user), **changes}
    return connect(found["bootstrap.servers"], found)


def write(broker: fencepost.Broker | fencepost.Cluster, user: str) -> None:
    with (
        logged_in(broker, user) as cluster,
        cluster.writer(cluster.init_producer_id(None)) as writer,
    ):
        writer.write_records(ORDERS, [Record(key=None, value=b"v")])
        writer.flush()


def create_orders(broker: fencepost.Broker | fencepost.Cluster) -> None:
    with logged_in(broker, "admin") as cluster:
        cluster.create_topics([NewTopic("orders")])


@pytest.mark.parametrize("tls", [True, False])
def test_a_user_may_do_what_it_was_granted_and_nothing_else(tls: bool) -> None:
    users = {"alice": "secret", "bob": "chalk"}
    with fencepost.Broker(security=Security(users=users, tls=tls)) as broker:
        create_orders(broker)
        with pytest.raises(ClientError, match="CLUSTER_AUTHORIZATION_FAILED"):
            write(broker, "alice")
        broker.grant("alice", "producer", topic="orders")
        write(broker, "alice")
        with pytest.raises(ClientError):
            write(broker, "bob")
        with pytest.raises(ClientError), logged_in(broker, "alice") as cluster:
            list(cluster.records(ORDERS))
        broker.grant("bob", "consumer", source="orders", group="g")
        with logged_in(broker, "bob") as cluster:
            assert [record.value for record in cluster.records(ORDERS)] == [b"v"]
        broker.allow("deny User:bob read topic:orders")
        with pytest.raises(ClientError), logged_in(broker, "bob") as cluster:
            list(cluster.records(ORDERS))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_user_logs_in_with_each_mechanism_and_a_stranger_with_none(mechanism: str) -> None:
    with fencepost.Broker(security=Security(users={"alice": "secret"}, acls=None)) as broker:
        right = broker.client_config("alice", mechanism)
        with connect(broker.bootstrap_servers, right) as cluster:
            cluster.create_topics([NewTopic("anybody-may")])
        wrong = right | {"sasl.password": "wrong"}
        with (
            pytest.raises(AuthenticationFailed),
            connect(broker.bootstrap_servers, wrong) as cluster,
        ):
            cluster.metadata()


def test_denials_say_who_was_denied_what() -> None:
    with fencepost.Broker(security=Security(users={"alice": "secret"})) as broker:
        create_orders(broker)
        assert broker.denials == []
        with pytest.raises(ClientError):
            write(broker, "alice")
        before = broker.denials
        assert before[0] == (
            *("User:alice", "IDEMPOTENT_WRITE", "CLUSTER", "kafka-cluster"),
            *("InitProducerId", "127.0.0.1"),
        )
        broker.grant("alice", "producer", topic="orders")
        write(broker, "alice")
        assert broker.denials == before
        broker.restart()
        assert broker.denials == before


def test_acls_are_there_from_the_start() -> None:
    acls = ["User:alice write topic:ord*", "allow User:alice from 127.0.0.1 create cluster"]
    with fencepost.Broker(security=Security(users={"alice": "secret"}, acls=acls)) as broker:
        with logged_in(broker, "alice") as cluster:
            cluster.create_topics([NewTopic("orders")])
        write(broker, "alice")


def test_what_a_test_changes_outlives_a_restart_and_the_port_stays() -> None:
    users = {"alice": "before", "dave": "leaves"}
    with fencepost.Broker(security=Security(users=users)) as broker:
        create_orders(broker)
        with logged_in(broker, "admin") as cluster:
            numbers = [each.number for each in MECHANISMS.values()]
            cluster.run(remove_user(cluster.core, "dave", numbers))
        broker.add_user("alice", "after")
        broker.add_user("carol", "new")
        broker.grant("carol", "producer", topic="orders")
        address = broker.bootstrap_servers
        broker.restart()
        assert broker.bootstrap_servers == address
        assert broker.client_config("alice")["sasl.password"] == "after"
        write(broker, "carol")
        with logged_in(broker, "alice") as cluster:
            assert cluster.metadata().brokers
        for gone in (
            logged_in(broker, "alice", **{"sasl.password": "before"}),
            logged_in(broker, "dave"),
        ):
            with pytest.raises(AuthenticationFailed), gone as cluster:
                cluster.metadata()


def test_kept_data_keep_their_users(tmp_path: Path) -> None:
    security = Security(users={"admin": "root", "alice": "secret"})
    with fencepost.Broker(data=tmp_path, security=security) as broker:
        create_orders(broker)
        broker.grant("alice", "producer", topic="orders")
    with pytest.raises(ConfigError, match="'admin' had another password there"):
        fencepost.Broker(data=tmp_path, security=Security(users={"admin": "other"})).start()
    with pytest.raises(ConfigError, match="give 'admin' a password in users="):
        fencepost.Broker(data=tmp_path, security=Security())
    # The refused start has released the directory.
    with fencepost.Broker(data=tmp_path, security=security) as broker:
        write(broker, "alice")


def test_files_are_private_and_go_with_the_broker() -> None:
    broker = fencepost.Broker(security=Security())
    for _ in range(2):
        with broker:
            folder = Path(broker.client_config("admin")["ssl.ca.location"]).parent
            assert folder.stat().st_mode & 0o077 == 0
            assert {each.stat().st_mode & 0o077 for each in folder.iterdir()} == {0}

            def leave(broker: fencepost.Broker = broker) -> None:
                broker.close()

            in_a_child(leave)
            assert folder.exists()
        assert not folder.exists()


def test_a_failed_start_leaves_no_files_and_no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def fail(*given: Any) -> None:
        raise FencepostError("no users today")

    broker = fencepost.Broker(security=Security(users={"alice": "secret"}))
    with monkeypatch.context() as patched:
        patched.setattr("fencepost.testing.security._set_password", fail)
        prepare = Secured.prepare

        def remember(self: Any) -> None:
            prepare(self)
            made.append(self._folder)

        patched.setattr("fencepost.testing.security.Secured.prepare", remember)
        with pytest.raises(FencepostError, match="no users today"):
            broker.start()
    assert [Path(each).exists() for each in made] == [False]
    with pytest.raises(FencepostError, match="not running"):
        broker.call(repr)
    with broker, logged_in(broker, "alice") as cluster:
        assert cluster.metadata().brokers


def test_passwords_are_not_in_what_is_printed() -> None:
    security = Security(users={"alice": "planted"})
    assert "planted" not in repr(security)
    with fencepost.Broker(security=security) as broker:
        assert "planted" not in repr(vars(broker)) + repr(vars(broker._secured))


def test_without_cryptography_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    broker = fencepost.Broker(security=Security())
    with pytest.raises(ConfigError, match=r"pip install 'fencepost\[secure-tests\]'") as refused:
        broker.start()
    assert "\n" not in str(refused.value)
    assert broker.data is None
    with fencepost.Broker(security=Security(tls=False)) as broker, logged_in(broker, "admin"):
        pass


WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: Security(super_users=()), "needs a super user"),
    (lambda: Security(users={"alice": ""}), "'alice' needs a name and a password"),
    (lambda: Security(users={"alice": "two\nlines"}), "of 'alice' must be one line"),
    (lambda: Security(acls=["alice read topic:orders"]), "such as User:alice"),
    (lambda: Security(acls=["User:alice raed topic:orders"]), "did you mean read"),
    (lambda: Security(acls=["User:alice topic:orders"]), "write PRINCIPAL OPERATION RESOURCE"),
    (lambda: Security(acls=["deny"]), "write PRINCIPAL OPERATION RESOURCE"),
    (
        lambda: fencepost.Broker(security=Security(), config={"super.users": "User:bob"}),
        "security= sets super.users",
    ),
    (
        lambda: fencepost.Cluster(security=Security(), config={"listeners": "SSL://:0"}),
        "security= sets listeners",
    ),
    (lambda: fencepost.Cluster(security=Security(), data="kept"), "a password in users="),
    (lambda: fencepost.Broker().client_config("alice"), r"use `Broker\(security=Security"),
    (lambda: fencepost.Broker().grant("alice", "producer"), r"use `Broker\(security=Security"),
    (
        lambda: fencepost.Broker(security=Security(tls=False), host="192.0.2.1").start(),
        "can be reached from other machines",
    ),
]


@pytest.mark.parametrize(("use", "words"), WRONG)
def test_what_cannot_work_is_refused_in_one_sentence(use: Callable[[], object], words: str) -> None:
    with pytest.raises(FencepostError, match=words) as refused:
        use()
    assert "\n" not in str(refused.value)


def test_one_string_is_no_list_of_names() -> None:
    with pytest.raises(TypeError, match="super_users must be a list of texts"):
        Security(super_users="admin")
    with pytest.raises(TypeError, match="security must be a Security"):
        fencepost.Broker(security={"alice": "secret"})  # type: ignore[arg-type]


def test_grants_say_what_they_lack() -> None:
    with fencepost.Broker(security=Security(tls=False)) as broker:
        for kind, given, words in (
            ("reader", {}, "use one of producer, consumer, transactional, spark-sink"),
            ("producer", {}, "needs topic="),
            ("consumer", {"source": "a"}, "needs group="),
            ("transactional", {"topic": "a"}, "needs transactional_id="),
            ("consumer", {"group": "a"}, "needs source="),
        ):
            with pytest.raises(FencepostError, match=words):
                broker.grant("alice", kind, **given)
        with pytest.raises(FencepostError, match="no user 'eve': there are admin"):
            broker.client_config("eve")
    with (
        fencepost.Broker(security=Security(tls=False, acls=None)) as broker,
        pytest.raises(FencepostError, match="every user may do anything"),
    ):
        broker.allow("User:alice read topic:a")


def test_commands_log_in_with_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with fencepost.Broker(security=Security(users={"alice": "secret"})) as broker:
        files = {}
        for user in ("admin", "alice"):
            files[user] = tmp_path / f"{user}.properties"
            lines = (f"{name}={value}\n" for name, value in broker.client_config(user).items())
            files[user].write_text("".join(lines))
        commands = Commands(broker.bootstrap_servers, capsys)

        def given(user: str) -> tuple[str, str]:
            return "--config", str(files[user])

        commands.run("topic", "create", "orders", *given("admin"))
        commands.run("acl", "grant", "producer", "User:alice", "--topic", "orders", *given("admin"))
        assert [each["user"] for each in commands.json("user", "list", *given("admin"))][::2] == [
            "admin",
            "alice",
        ]
        assert "orders" in commands.run("topic", "list", *given("alice"))
        said = commands.refusal("acl", "list", *given("alice"))
        assert "CLUSTER_AUTHORIZATION_FAILED" in said or "may not" in said


@pytest.mark.slow
def test_a_cluster_has_users_tls_and_acls_and_shows_no_password() -> None:
    with fencepost.Cluster(2, security=Security(users={"alice": "planted"})) as cluster:
        passwords = [cluster.client_config(each)["sasl.password"] for each in ("admin", "alice")]
        assert cluster._process is not None
        shown = arguments_of(cluster._process.pid)
        assert b"--init-admin" in shown
        create_orders(cluster)
        with pytest.raises(ClientError):
            write(cluster, "alice")
        cluster.grant("alice", "producer", topic="orders")
        write(cluster, "alice")
        leader = cluster.leader_of("orders", 0)
        cluster.move("orders", 0, 3 - leader)
        cluster.kill(leader)
        write(cluster, "alice")
        cluster.restart()
        write(cluster, "alice")
        folder = Path(cluster.client_config("alice")["ssl.ca.location"]).parent
        with pytest.raises(FencepostError, match="logs of its brokers"):
            _ = cluster.denials
    assert not folder.exists()
    shown += cluster.log_text().encode()
    assert [each for each in passwords if each.encode() in shown] == []
