"""A broker with users, TLS and ACLs for one test.

    security = Security(users={"alice": "secret"}, acls=["User:alice read topic:orders"])
    with fencepost.Broker(security=security) as broker:
        consumer = confluent_kafka.Consumer({**broker.client_config("alice"), "group.id": "g"})

`Security` is what a test wants. `Secured` is what it becomes for one broker or cluster:
certificates and a password file in a temporary folder, settings, and passwords for clients.

Theory of operation
-------------------
    prepare      before the start: the folder, certificates, the administrator's password file
    (the start)  creates the administrator, as `fencepost serve --init-admin` does
    establish    after the first start: adds the other users and the ACLs over the wire, as
                 `fencepost user add` and `fencepost acl add` do, logged in as the administrator

So one way serves a broker in this process and a cluster of several, and it is the way that an
operator uses. A later start of the same object establishes nothing: a test that has changed a
password or an ACL finds it changed after a restart.

The administrator is the first of `super_users`. A super user without a password in `users` gets a
random one, which `client_config` returns.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from fencepost.base.arguments import checked
from fencepost.base.failures import ConfigError, FencepostError
from fencepost.base.scram import MECHANISMS, SALT_SEED_BYTES, new_password, new_salt
from fencepost.broker.faults.faults import EXEMPT_CLIENT
from fencepost.client.failures import AuthenticationFailed
from fencepost.client.secret import Secret
from fencepost.coordinator.acl import grants
from fencepost.coordinator.acl.rules import ALL_HOSTS, Rule
from fencepost.coordinator.acl.words import read_rule, read_sentence
from fencepost.testing.arguments import bracketed
from fencepost.testing.certificates import make_certificates, write_private
from fencepost.testing.contents import Contents
from fencepost.testing.folders import delete_folder, make_folder

if TYPE_CHECKING:
    from fencepost.broker.security.first_administrator import Administrator
    from fencepost.client.blocking import Cluster as Client

AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
T = TypeVar("T")
ENABLED: Final = ("PLAIN", *MECHANISMS)
MECHANISM: Final = "SCRAM-SHA-512"
"""What `client_config` chooses unless it is told otherwise."""


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """Who may use a broker of a test, and for what."""

    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Passwords by name."""
    super_users: Sequence[str] = ("admin",)
    """Names of users who may do anything."""
    tls: bool = True
    """Whether clients use TLS. It needs cryptography: `pip install 'fencepost[secure-tests]'`."""
    acls: Sequence[str] | None = ()
    """ACLs such as `User:alice read topic:orders`. With None every user may do anything."""

    def __post_init__(self) -> None:
        if not self.super_users:
            raise ConfigError("Security needs a super user, who adds the other users and the ACLs.")
        for name, password in self.users.items():
            if not name or not password:
                raise ConfigError(f"The user {name!r} needs a name and a password.")
            if len(password.splitlines()) != 1:
                raise ConfigError(f"The password of {name!r} must be one line.")
        self.rules()

    def rules(self) -> list[Rule]:
        """The ACLs."""
        return [read_sentence(each) for each in self.acls or ()]


class Secured:
    """A `Security` for one broker or cluster."""

    def __init__(self, security: Security, *, host: str, config: Mapping[str, object]) -> None:
        if not isinstance(security, Security):
            raise TypeError(f"security must be a Security(...), not {type(security).__name__}")
        self._security = security
        self._host = host
        self._passwords = {name: Secret(text) for name, text in security.users.items()}
        for name in security.super_users:
            self._passwords.setdefault(name, Secret(secrets.token_urlsafe(16)))
        self._folder: str | None = None
        self._settings: dict[str, str] = {}
        self._ca_file = ""
        self._password_file = ""
        self._is_established = False
        taken = sorted({*self._own_settings("", ""), "listeners"} & config.keys())
        if taken:
            raise ConfigError(
                f"security= sets {', '.join(taken)}, which config= sets, too. Leave it to "
                "security=, or write all settings into config= without security=."
            )

    @property
    def administrator(self) -> Administrator:
        """Who adds the other users."""
        from fencepost.broker.security.first_administrator import Administrator

        return Administrator(self._administrator, self._passwords[self._administrator])

    @property
    def password_file(self) -> str:
        """A file with the administrator's password, for a child process."""
        return self._password_file

    @property
    def protocol(self) -> str:
        """Kafka's name for it."""
        return "SASL_SSL" if self._security.tls else "SASL_PLAINTEXT"

    @property
    def _administrator(self) -> str:
        return self._security.super_users[0]

    def refuse_kept_data(self, data: str | None) -> None:
        """A random password would lock the next program out of data that are kept."""
        if data is not None and self._administrator not in self._security.users:
            raise ConfigError(
                f"With data= the users are kept: give {self._administrator!r} a password in users=."
            )

    def prepare(self) -> None:
        """Makes the folder with all files, unless it is there."""
        if self._folder is not None:
            return
        folder = make_folder("fencepost-security-")
        try:
            listener = ""
            if self._security.tls:
                hosts = ("localhost", "127.0.0.1", "::1", self._host)
                self._ca_file, listener = make_certificates(folder, hosts)
            password = self.administrator.password.reveal()
            self._password_file = write_private(folder, "password", f"{password}\n".encode())
        except BaseException:
            delete_folder(folder)
            raise
        self._folder = folder
        self._settings = self._own_settings(self._ca_file, listener)

    def settings(self, port: int) -> list[str]:
        """The settings of a broker that listens on this port."""
        listeners = f"{self.protocol}://{bracketed(self._host)}:{port}"
        found = {**self._settings, "listeners": listeners}
        return [f"{name}={value}" for name, value in found.items()]

    def _own_settings(self, ca_file: str, listener: str) -> dict[str, str]:
        found = {"sasl.enabled.mechanisms": ",".join(ENABLED)}
        if self._security.tls:
            found |= {"ssl.keystore.location": listener, "ssl.truststore.location": ca_file}
        if self._security.acls is not None:
            names = (f"User:{name}" for name in self._security.super_users)
            found |= {"authorizer.class.name": AUTHORIZER, "super.users": ";".join(names)}
        return found

    def establish(self, bootstrap_servers: str) -> None:
        """Adds users and ACLs, once."""
        if self._is_established:
            return
        try:
            with self.connect(bootstrap_servers) as client:
                client.metadata(())  # Logs in, also if there is nothing to add.
                for name, password in self._passwords.items():
                    if name != self._administrator:
                        _set_password(client, name, password)
                _add_rules(client, self._security.rules())
        except AuthenticationFailed as problem:
            raise ConfigError(
                f"The users of this data directory are from an earlier program, and "
                f"{self._administrator!r} had another password there: give it in users=, or "
                f"choose another data=. ({problem})"
            ) from problem
        self._is_established = True

    def client_config(self, user: str, bootstrap_servers: str, mechanism: str) -> dict[str, str]:
        """The settings with which a client logs in."""
        password = self._passwords.get(user)
        if password is None:
            raise FencepostError(
                f"There is no user {user!r}: there are {', '.join(sorted(self._passwords))}. "
                "Add it to users= of Security, or with add_user."
            )
        found = {
            "bootstrap.servers": bootstrap_servers,
            "security.protocol": self.protocol,
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password.reveal(),
        }
        if self._security.tls:
            found["ssl.ca.location"] = self._ca_file
        return found

    def connect(self, bootstrap_servers: str, options: Mapping[str, str] | None = None) -> Client:
        """A client that is logged in as the administrator."""
        from fencepost.client.blocking import connect

        own = self.client_config(self._administrator, bootstrap_servers, MECHANISM)
        return connect(bootstrap_servers, {**(options or {}), **own})

    def add_user(self, bootstrap_servers: str, name: str, password: str) -> None:
        """Adds a user, or changes the password."""
        secret = Secret(password)
        with self.connect(bootstrap_servers) as client:
            _set_password(client, name, secret)
        self._passwords[name] = secret

    def add_rules(self, bootstrap_servers: str, rules: Iterable[Rule]) -> None:
        """Adds ACLs."""
        if self._security.acls is None:
            raise FencepostError("acls=None means that every user may do anything: use acls=().")
        with self.connect(bootstrap_servers) as client:
            _add_rules(client, rules)

    def delete(self, *, keeps_files: bool) -> None:
        """Deletes the files; the next start makes new ones.

        A forked process keeps them, for the process that made them.
        """
        if self._folder is not None and not keeps_files:
            delete_folder(self._folder)
        self._folder = None
        self._is_established = False


@checked
class SecuredContents(Contents):
    """Contents of a `Broker` or `Cluster` that may have `security=`, and what that offers."""

    _secured: Secured | None

    def _connect(self) -> Client:
        if self._secured is None:
            return super()._connect()
        return self._secured.connect(self.bootstrap_servers, {"client.id": EXEMPT_CLIENT})

    def client_config(self, user: str, mechanism: str = MECHANISM) -> dict[str, str]:
        """The settings with which confluent-kafka and fencepost's client log in as this user."""
        secured = self._require_security()
        return secured.client_config(user, self.bootstrap_servers, mechanism)

    def add_user(self, name: str, password: str) -> None:
        """Adds a user, or changes the password, as `fencepost user add` does."""
        self._require_security().add_user(self.bootstrap_servers, name, password)

    def grant(
        self,
        user: str,
        kind: str,
        *,
        topic: str | Sequence[str] = (),
        source: str | Sequence[str] = (),
        group: str | None = None,
        transactional_id: str | None = None,
        ledger: str = grants.LEDGER_TOPIC,
    ) -> None:
        """Gives a user what a program of this kind needs, as `fencepost acl grant` does.

        `kind` is producer, consumer, transactional or spark-sink. A name may end with `*`.
        """
        secured = self._require_security()
        topics, sources = _names(topic), _names(source)
        kinds: dict[str, Callable[[], list[tuple[str, str]]]] = {
            "producer": lambda: grants.producer_rights(topics),
            "consumer": lambda: grants.consumer_rights(sources, _given(group, "group")),
            "transactional": lambda: grants.transactional_rights(
                _given(transactional_id, "transactional_id"), topics, sources, group
            ),
            "spark-sink": lambda: grants.spark_sink_rights(
                _given(transactional_id, "transactional_id"), topics, sources, ledger
            ),
        }
        if kind not in kinds:
            raise FencepostError(f"There is no grant {kind!r}: use one of {', '.join(kinds)}.")
        needed = sources if kind == "consumer" else topics
        _given(needed, "source" if kind == "consumer" else "topic")
        secured.add_rules(
            self.bootstrap_servers,
            [
                read_rule(f"User:{user}", *each, deny=False, host=ALL_HOSTS)
                for each in kinds[kind]()
            ],
        )

    def allow(self, acl: str) -> None:
        """Adds one ACL such as `User:alice read topic:orders`; `deny` before it denies."""
        self._require_security().add_rules(self.bootstrap_servers, [read_sentence(acl)])

    def _require_security(self) -> Secured:
        if self._secured is None:
            name = type(self).__name__
            raise FencepostError(f"There are no users here: use `{name}(security=Security(...))`.")
        return self._secured


def _names(given: str | Sequence[str]) -> Sequence[str]:
    return [given] if isinstance(given, str) else given


def _given(value: T | None, name: str) -> T:
    if not value:
        raise FencepostError(f"This grant needs {name}=.")
    return value


def _set_password(client: Client, name: str, password: Secret) -> None:
    from fencepost.client.users import set_password

    salted = [
        new_password(each, password.reveal(), new_salt(os.urandom(SALT_SEED_BYTES)))
        for each in MECHANISMS.values()
    ]
    client.run(set_password(client.core, name, salted))


def _add_rules(client: Client, rules: Iterable[Rule]) -> None:
    from fencepost.client.acls import Acl, create_acls

    acls = [Acl(*rule) for rule in rules]
    if acls:
        client.run(create_acls(client.core, acls))
