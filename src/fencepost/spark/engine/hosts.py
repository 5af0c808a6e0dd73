"""Which hosts an application runs on, and what may travel between them in the clear.

Tasks exchange batches over sockets that are authenticated but not encrypted (`ways/meeting.py`). On
one host that exposes nothing. Between hosts, rows go through Spark's shuffle, which is encrypted if
the application's settings say so, unless the user passes exchange="plain". If Spark encrypts
anything, its shuffle is used on one host too.

Executors also need the passwords of the brokers, which Spark sends them with the plan. If Spark
does not encrypt its RPC and executors are on other hosts, the sink refuses to start, again unless
exchange="plain". Keys in files (`ssl.key.location`) are read where they are used and not sent.
A source has no session where it is planned, so its first task refuses (`check_received_secrets`).

Executors come and go, so the hosts are looked up for every job. If all are on one host, tasks use
its loopback interface only: a task that runs elsewhere after all reaches no other, the attempt
fails, and the next one uses the shuffle (`ways/exchange.py`).
"""

from __future__ import annotations

import platform
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from fencepost.spark.engine.private_names import HOSTS
from fencepost.spark.engine.session import allows_barrier, is_connect, is_on, java_context, setting
from fencepost.spark.failures import SinkRefused, SourceRefused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fencepost.client.options import ClientOptions
    from fencepost.spark.settings import SinkSettings

_RPC_ENCRYPTION: Final = (
    "spark.network.crypto.enabled",
    "spark.authenticate.enableSaslEncryption",
    "spark.ssl.rpc.enabled",
)
_ENCRYPTION: Final = (*_RPC_ENCRYPTION, "spark.io.encryption.enabled")
"""If Spark encrypts between executors or on their disks, rows must not travel on plain sockets."""


def exchange_hosts(session: SparkSession, settings: SinkSettings) -> tuple[str, ...] | None:
    """The hosts between which tasks may send each other rows without Spark.

    Empty if all executors are on one host, which needs no address; None if tasks must not.
    """
    if any(is_on(session, name) for name in _ENCRYPTION):
        return None
    if _is_local(session):
        return ()
    hosts = executor_hosts(session)
    if hosts is not None and len(hosts) <= 1:
        return ()
    return tuple(sorted(hosts)) if hosts and settings.is_plain else None


def meeting_place(session: SparkSession) -> tuple[str, str]:
    """The driver's address for tasks, and its bind address: loopback if all tasks are local."""
    if _is_local(session):
        return "127.0.0.1", "127.0.0.1"
    host = setting(session, "spark.driver.host", "127.0.0.1")
    # Spark writes IPv6 addresses with brackets.
    return host.strip("[]"), setting(session, "spark.driver.bindAddress", host).strip("[]")


def check_secrets(session: SparkSession, settings: SinkSettings) -> None:
    """SinkRefused if Spark would send a password of the brokers to another host in the clear."""
    if not settings.is_plain and has_secrets(settings.client):
        check_sending(
            session,
            "the options have a password or key for the brokers",
            "or pass exchange='plain' to allow it",
        )


def check_sending(session: SparkSession, what: str, way_out: str) -> None:
    """SinkRefused if Spark would send `what` to another host in the clear."""
    if _is_local(session) or any(is_on(session, name) for name in _RPC_ENCRYPTION):
        return
    if others := _other_hosts(session):
        raise SinkRefused(
            f"{what}, and Spark would send it in the clear to executors on {others}: set "
            f"spark.authenticate and spark.network.crypto.enabled to true, {way_out}. Nothing of "
            "the batch was written"
        )


def check_received_secrets(client: ClientOptions, planned_on: str) -> None:
    """SourceRefused if Spark sent a password of the brokers to this task in the clear."""
    if not has_secrets(client) or platform.node() == planned_on:
        return
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is not None:
        # Spark passes the settings of the session on to its tasks.
        passed = (context.getLocalProperty(name) for name in _RPC_ENCRYPTION)
        if any(value is not None and value.strip().lower() == "true" for value in passed):
            return
    raise SourceRefused(
        "the options have a password or key for the brokers, and Spark sent it in the clear from "
        f"{planned_on} to an executor on {platform.node()}: set spark.authenticate and "
        'spark.network.crypto.enabled to true, or pass .option("exchange", "plain") to allow it. '
        "Nothing was read"
    )


def _other_hosts(session: SparkSession) -> str:
    """On which hosts but the driver's executors may be; empty if on none."""
    if is_connect(session):
        return "hosts that Spark Connect does not show"
    if (hosts := executor_hosts(session)) is None:
        return "hosts that this Spark does not show"
    if others := hosts - {_driver_host(session)}:
        return f"other hosts ({', '.join(sorted(others))})"
    # Executors that are started for the job may be anywhere.
    return "" if allows_barrier(session) else "any host that dynamic allocation chooses"


def has_secrets(options: ClientOptions) -> bool:
    """Whether these options hold a password or a private key themselves."""
    tls = options.tls
    keys = (None, None) if tls is None else (tls.key_text, tls.key_password)
    return options.login is not None or any(key is not None for key in keys)


def executor_hosts(session: SparkSession) -> set[str] | None:
    """The hosts of the executors that are registered now; None if unknown."""
    with HOSTS.optional():
        stores = getattr(java_context(session), HOSTS.stores)().keySet().mkString(" ")
        return hosts_in(str(stores).split(), _driver_host(session))
    return None


def hosts_in(stores: Iterable[str], driver: str) -> set[str]:
    """The hosts of executors, from the addresses of all block stores, of which one is the driver's.

    SparkEnv would tell which, but py4j cannot look at that class without all of Spark's jars.
    """
    hosts = [host_of(store) for store in stores]
    if driver in hosts:
        hosts.remove(driver)
    return set(hosts)


def host_of(address: str) -> str:
    """The host in `host:port`."""
    return address.rpartition(":")[0].strip("[]")


def _is_local(session: SparkSession) -> bool:
    return setting(session, "spark.master").startswith("local")


def _driver_host(session: SparkSession) -> str:
    return setting(session, "spark.driver.host").strip("[]")
