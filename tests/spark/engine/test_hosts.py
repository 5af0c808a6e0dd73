"""Goal: nothing of ours travels between hosts in the clear unless the user has said so.

Method: the decision alone, with hosts and settings that the test chooses. The standalone cluster
and the network namespaces of tests/spark/standalone show that Spark reports what is assumed here.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.base.failures import ConfigError
from fencepost.spark import TransactionalSink
from fencepost.spark.engine import hosts
from fencepost.spark.engine.hosts import (
    check_received_secrets,
    check_secrets,
    exchange_hosts,
    host_of,
    hosts_in,
)
from fencepost.spark.failures import EXECUTOR_PACKAGES, SinkRefused, SourceRefused
from fencepost.spark.sentences import find_missing_module
from fencepost.spark.settings import SinkSettings, read_settings

PASSWORD = {
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.username": "me",
    "kafka.sasl.password": "hunter2",
}
KEY_FILE = {"kafka.security.protocol": "SSL", "kafka.ssl.key.location": __file__}
KEY_TEXT = {
    "kafka.security.protocol": "SSL",
    "kafka.ssl.keystore.key": "-----BEGIN PRIVATE KEY-----",
    "kafka.ssl.keystore.certificate.chain": "-----BEGIN CERTIFICATE-----",
}


def settings(options: dict[str, str] | None = None, exchange: str = "auto") -> SinkSettings:
    return read_settings("broker:9092", options or {}, exchange)


class Application:
    """A session, as far as these decisions see it."""

    def __init__(self, patch: pytest.MonkeyPatch, *executors: str, **given: str) -> None:
        known = {"spark.master": "spark://master:7077", "spark.driver.host": "driver"}
        known |= {f"spark.{name.replace('_', '.')}": value for name, value in given.items()}
        patch.setattr(hosts, "setting", lambda _, name, default="": known.get(name, default))
        patch.setattr(hosts, "is_on", lambda _, name: known.get(name) == "true")
        patch.setattr(hosts, "executor_hosts", lambda _: set(executors))
        patch.setattr(hosts, "allows_barrier", lambda _: "dynamicAllocation.enabled" not in given)
        patch.setattr(hosts, "is_connect", lambda _: False)
        self.session: Any = None


def test_tasks_connect_to_each_other_on_one_host_and_between_hosts_only_if_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = Application(monkeypatch, "a").session
    assert exchange_hosts(session, settings()) == ()
    assert exchange_hosts(session, settings(exchange="plain")) == ()
    session = Application(monkeypatch, "b", "a").session
    assert exchange_hosts(session, settings()) is None
    assert exchange_hosts(session, settings(exchange="plain")) == ("a", "b")
    session = Application(monkeypatch, "a", "b", master="local[2]").session
    assert exchange_hosts(session, settings()) == ()


@pytest.mark.parametrize("name", hosts._ENCRYPTION)
def test_if_spark_encrypts_tasks_never_connect_to_each_other(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    session = Application(monkeypatch, "a").session
    monkeypatch.setattr(hosts, "is_on", lambda _, wanted: wanted == name)
    assert exchange_hosts(session, settings(exchange="plain")) is None


@pytest.mark.parametrize("options", [PASSWORD, KEY_TEXT], ids=["password", "key"])
def test_a_password_goes_to_other_hosts_only_if_spark_encrypts_or_the_user_allows_it(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    session = Application(monkeypatch, "driver", "b", "a").session
    with pytest.raises(SinkRefused, match=r"other hosts \(a, b\).*network\.crypto.*exchange='pl"):
        check_secrets(session, settings(options))
    check_secrets(session, settings(options, exchange="plain"))
    check_secrets(session, settings())
    check_secrets(session, settings(KEY_FILE))
    Application(monkeypatch, "driver")
    check_secrets(session, settings(options))
    Application(monkeypatch, "a", network_crypto_enabled="true")
    check_secrets(session, settings(options))
    Application(monkeypatch, "a", master="local-cluster[2,1,1024]")
    check_secrets(session, settings(options))


def test_under_dynamic_allocation_the_next_executor_may_be_on_any_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = Application(monkeypatch, **{"dynamicAllocation.enabled": "true"}).session
    with pytest.raises(SinkRefused, match="on any host that dynamic allocation chooses: set"):
        check_secrets(session, settings(PASSWORD))
    check_secrets(session, settings(PASSWORD, exchange="plain"))


def test_encrypted_files_do_not_protect_a_password_on_the_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = Application(monkeypatch, "a", io_encryption_enabled="true").session
    with pytest.raises(SinkRefused, match="password"):
        check_secrets(session, settings(PASSWORD))


def test_another_word_for_exchange_is_refused() -> None:
    with pytest.raises(ConfigError, match="exchange must be 'auto' or 'plain', not 'tls'"):
        TransactionalSink("h:1", transactional_id="t", exchange="tls")  # type: ignore[arg-type]


def test_the_host_of_an_address() -> None:
    assert [host_of(each) for each in ("h:1", "10.0.0.1:77", "[fd00::1]:5")] == [
        "h",
        "10.0.0.1",
        "fd00::1",
    ]


def test_the_block_store_of_the_driver_is_not_an_executor() -> None:
    assert hosts_in(["driver:1", "a:2", "a:3"], "driver") == {"a"}
    assert hosts_in(["driver:1", "driver:2"], "driver") == {"driver"}
    assert hosts_in(["[fd00::1]:1", "b:2"], "fd00::1") == {"b"}


@pytest.mark.parametrize("name", ["fencepost", *EXECUTOR_PACKAGES])
def test_a_package_that_executors_lack_is_named_with_the_ways_to_install_it(name: str) -> None:
    text = (
        f"pyspark.errors.PythonException:\n  ModuleNotFoundError: No module named '{name}.core'\n"
    )
    found = find_missing_module(text)
    assert found is not None
    assert f"the Python of the executors has no module '{name}': install fencepost" in str(found)
    assert "--archives" in str(found)


def test_a_package_of_the_users_own_functions_is_not_ours_to_explain() -> None:
    assert find_missing_module("ModuleNotFoundError: No module named 'sklearn'") is None
    assert find_missing_module("") is None


def test_hosts_that_spark_does_not_show_are_taken_for_others() -> None:
    context = SimpleNamespace(
        _jsc=SimpleNamespace(sc=SimpleNamespace),
        _conf={"spark.master": "spark://master:7077", "spark.driver.host": "driver"},
    )
    session: Any = SimpleNamespace(sparkContext=context)
    assert exchange_hosts(session, settings()) is None
    assert exchange_hosts(session, settings(exchange="plain")) is None
    with pytest.raises(SinkRefused, match="to executors on hosts that this Spark does not show"):
        check_secrets(session, settings(PASSWORD))


class Task:
    """What a task of a source knows: settings that Spark passes on."""

    def __init__(self, patch: pytest.MonkeyPatch, host: str, **given: str) -> None:
        known = {f"spark.{name.replace('_', '.')}": value for name, value in given.items()}
        context = SimpleNamespace(getLocalProperty=known.get)
        patch.setattr("pyspark.TaskContext.get", lambda: context)
        patch.setattr("platform.node", lambda: host)


@pytest.mark.parametrize("options", [PASSWORD, KEY_TEXT], ids=["password", "key"])
def test_a_task_of_a_source_refuses_a_password_that_came_in_the_clear(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    client = settings(options).client
    Task(monkeypatch, "worker")
    with pytest.raises(SourceRefused, match=r"from driver to an executor on worker.*exchange"):
        check_received_secrets(client, "driver")
    Task(monkeypatch, "worker", network_crypto_enabled="false")
    with pytest.raises(SourceRefused) as refused:
        check_received_secrets(client, "driver")
    assert "hunter2" not in str(refused.value)
    Task(monkeypatch, "worker", network_crypto_enabled="true")
    check_received_secrets(client, "driver")
    Task(monkeypatch, "driver")
    check_received_secrets(client, "driver")


def test_a_task_of_a_source_without_secrets_may_be_anywhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Task(monkeypatch, "worker")
    check_received_secrets(settings().client, "driver")
    check_received_secrets(settings(KEY_FILE).client, "driver")
