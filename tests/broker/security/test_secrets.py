"""No secret leaves the broker: not in logs, traces, taps, dumps, settings, metrics or arguments.

Method: broker processes with everything that writes switched on. Passwords and a private key are
planted in every place that takes one, and used, rightly and wrongly; then everything that was
printed, sent or can be seen from outside is searched for them, also in hexadecimal and base64.

The data directory has no secret but the credentials of users in the metadata log: salts and keys,
as in Kafka, and never a password or a salted password, with which one can log in.
"""

from __future__ import annotations

import base64
import contextlib
import json
import traceback
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

import fencepost
from fencepost.base.failures import FencepostError
from fencepost.base.scram import BY_NUMBER, MECHANISMS, SALT_BYTES, credential_of, new_password
from fencepost.cli import main
from fencepost.client.blocking import Cluster, connect
from fencepost.client.failures import ClientError
from fencepost.client.users import describe_users, set_password
from fencepost.forensics.logs.log_files import DumpOptions, dump_files, find_files
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from fencepost.wire.forms.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from fencepost.wire.forms.sasl_authenticate import SaslAuthenticateRequest
from fencepost.wire.forms.sasl_handshake import SaslHandshakeRequest
from tests.broker.raw import RawClient
from tests.broker.security.certificates import Authority
from tests.forensics.tap.running import running_tap
from tools.fencepost_process import FencepostProcess

ADMIN, JAAS, USER, WRONG, DYNAMIC, KEY_PASSWORD = (
    f"planted-{name}-secret" for name in ("admin", "jaas", "user", "wrong", "dynamic", "key")
)
METADATA = "__cluster_metadata-0"
SALT = b"planted-salt-16b"
SALTED = {each.number: each.salted_password(USER, SALT, 4096) for each in MECHANISMS.values()}
PLAIN_JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def secrets() -> list[bytes]:
    """Everything that lets somebody in, or helps to guess it, in every spelling."""
    found = [SALT]
    for number, salted in SALTED.items():
        mechanism = BY_NUMBER[number]
        found += credential_of(mechanism, salted, SALT, 4096)[1:3]
    return [*keys_to_the_door(), *spelled(found)]


def keys_to_the_door() -> list[bytes]:
    """Those with which somebody can log in, in every spelling."""
    passwords = [each.encode() for each in (ADMIN, JAAS, USER, WRONG, DYNAMIC, KEY_PASSWORD)]
    return spelled([*passwords, *SALTED.values()])


def spelled(found: Sequence[bytes]) -> list[bytes]:
    more = [base64.b64encode(each) for each in found]
    more += [each.hex().encode() for each in found]
    more += [repr(each)[2:-1].encode() for each in found]
    return [*found, *more]


def search_directory(data: Path, wanted: Sequence[bytes] = ()) -> None:
    """Asserts that no file has a secret, except those of credentials in the metadata log."""
    files = [each for each in data.rglob("*") if each.is_file()]
    assert any(each.parent.name == METADATA for each in files)
    for each in files:
        content = each.read_bytes()
        searched = keys_to_the_door() if each.parent.name == METADATA else secrets()
        assert [one for one in (*searched, *wanted) if one in content] == [], each
    logged = b"".join(each.read_bytes() for each in files if each.parent.name == METADATA)
    assert credential_of(BY_NUMBER[1], SALTED[1], SALT, 4096).stored_key in logged


def options(user: str, password: str, mechanism: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }


def try_to_log_in(servers: str, user: str, password: str, mechanism: str) -> bool:
    given = options(user, password, mechanism)
    with contextlib.suppress(ClientError), connect(servers, given) as cluster:
        return bool(cluster.metadata(()).brokers)
    return False


def ask_for_settings(cluster: Cluster, seen: list[str]) -> None:
    """Describes all settings, and tries to set a secret one while the brokers run."""
    from fencepost.client.calls import BrokerById, call_one

    def ask(api: ApiKey, request: Any) -> None:
        reply = cluster.run(
            call_one(cluster.core, BrokerById(1), api, request, lambda form: (0, None))
        )
        seen.append(repr(reply.form))

    own = AlterConfigsResource(
        resource_type=4,
        resource_name="",
        configs=[
            AlterableConfig(
                name="listener.name.plaintext.plain.sasl.jaas.config",
                config_operation=0,
                value=f'{PLAIN_JAAS} user_eve="{DYNAMIC}";',
            )
        ],
    )
    ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest(resources=[own]))
    described = [
        DescribeConfigsResource(resource_type=4, resource_name=name, configuration_keys=None)
        for name in ("", "1")
    ]
    ask(
        ApiKey.DESCRIBE_CONFIGS,
        DescribeConfigsRequest(
            resources=described, include_synonyms=True, include_documentation=True
        ),
    )


def arguments_of(pid: int) -> bytes:
    """What every user of the machine sees of a process and its children."""
    seen = b""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            status = (folder / "status").read_text()
            if folder.name == str(pid) or f"PPid:\t{pid}\n" in status:
                seen += (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
    return seen


def broken_requests(address: str) -> None:
    """Requests with secrets that the broker cannot read, or does not expect."""
    for mechanism, message in (
        ("PLAIN", f"\0alice\0{WRONG}\0more".encode()),
        ("PLAIN", WRONG.encode()),
        ("SCRAM-SHA-256", f"n,,n={WRONG},r=".encode()),
    ):
        with RawClient(address) as client:
            client.call(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism=mechanism))
            request = SaslAuthenticateRequest(auth_bytes=message)
            assert client.call(ApiKey.SASL_AUTHENTICATE, 2, request).error_code
    with RawClient(address) as client:
        reply = client.call(ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism="NONE"))
        assert reply.error_code
    with RawClient(address) as client:
        client.send_frame(WRONG.encode())
        assert client.is_closed_by_broker()


def test_planted_secrets_are_found_nowhere(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "server.properties"
    settings.write_text(
        "listener.security.protocol.map=PLAINTEXT:SASL_PLAINTEXT\n"
        "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512\n"
        f'listener.name.plaintext.plain.sasl.jaas.config={PLAIN_JAAS} user_jack="{JAAS}";\n'
    )
    password = tmp_path / "password"
    password.write_text(f"{ADMIN}\n")
    trace, data = tmp_path / "trace", tmp_path / "data"
    given = ["--brokers", "3", "--config-file", str(settings), "--trace", str(trace)]
    given += ["--log-level", "debug", "--metrics", "127.0.0.1:0"]
    given += ["--init-admin", "admin", "--init-admin-password", str(password)]
    seen: list[str] = []
    with FencepostProcess(data, options=given) as process:
        addresses = process.bootstrap_servers.split(",")
        assert len(addresses) == 3
        # What is changed through one broker counts at every other one.
        with connect(addresses[0], options("admin", ADMIN, "SCRAM-SHA-512")) as cluster:
            passwords = [new_password(each, USER, SALT) for each in MECHANISMS.values()]
            cluster.run(set_password(cluster.core, "alice", passwords))
            seen.append(repr(cluster.run(describe_users(cluster.core))))
            ask_for_settings(cluster, seen)
        for address in addresses:
            assert try_to_log_in(address, "admin", ADMIN, "SCRAM-SHA-256")
            for mechanism in MECHANISMS:
                assert try_to_log_in(address, "alice", USER, mechanism)
                assert not try_to_log_in(address, "alice", WRONG, mechanism)
            assert try_to_log_in(address, "jack", JAAS, "PLAIN")
            assert not try_to_log_in(address, "jack", WRONG, "PLAIN")
            assert not try_to_log_in(address, WRONG, WRONG, "PLAIN")
        port = int(addresses[0].rpartition(":")[2])
        with running_tap(port, keeps_bytes=True) as tap:
            through = f"127.0.0.1:{tap.proxy.addresses.first}"
            for mechanism in MECHANISMS:
                assert try_to_log_in(through, "alice", USER, mechanism)
            try_to_log_in(through, "jack", JAAS, "PLAIN")
            with connect(through, options("admin", ADMIN, "SCRAM-SHA-512")) as cluster:
                cluster.run(set_password(cluster.core, "alice", passwords))
            seen += [json.dumps(line) for line in tap.lines.lines]
        assert any('"AlterUserScramCredentials"' in each for each in seen)
        broken_requests(addresses[1])
        seen.append(arguments_of(process.process.pid).decode("utf-8", "replace"))
        for line in process.process.output.splitlines():
            if "http://" in line:
                url = "http://" + line.partition("http://")[2].split("/")[0] + "/metrics"
                with urllib.request.urlopen(url, timeout=30) as reply:
                    seen.append(reply.read().decode())
    seen.append(process.process.output)
    assert "a login of" in seen[-1]
    seen.append(trace.read_text())
    assert "AlterUserScramCredentials" in seen[-1]
    assert "SaslAuthenticate" in seen[-1]
    search_directory(data)
    logs = find_files([data / METADATA])
    for _, rows in dump_files(logs, DumpOptions(records=True, values=True)):
        seen += [repr(row) for row in rows]
    assert "UserScramCredentialRecord" in "".join(seen)
    main.run(["user", "list", "--data", str(data)])
    main.run(["check", str(data)])
    seen += capfd.readouterr()
    everything = "\n".join(seen).encode()
    assert [each for each in secrets() if each in everything] == []


def encrypted_key(authority: Authority) -> tuple[str, str]:
    """A certificate chain, and its private key under a planted password, as PEM text."""
    whole = Path(authority.listener()).read_bytes()
    key = serialization.load_pem_private_key(whole, None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(KEY_PASSWORD.encode()),
    )
    return whole[whole.index(b"-----BEGIN CERTIFICATE") :].decode(), locked.decode()


def test_a_private_key_and_passwords_are_not_in_json_logs_or_files(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    chain, key = encrypted_key(authority)
    settings = tmp_path / "server.properties"
    text = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_SSL",
        "ssl.keystore.certificate.chain": chain,
        "ssl.keystore.key": key,
        "ssl.key.password": KEY_PASSWORD,
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    }
    lines = (f"{name}={value!r}\n".replace("'", "") for name, value in text.items())
    settings.write_text("".join(lines))
    password, trace, data = tmp_path / "password", tmp_path / "trace", tmp_path / "data"
    password.write_text(f"{ADMIN}\n")
    given = ["--brokers", "2", "--config-file", str(settings), "--trace", str(trace)]
    given += ["--log-format", "json", "--log-level", "debug"]
    given += ["--init-admin", "admin", "--init-admin-password", str(password)]
    seen: list[str] = []
    tls = {"security.protocol": "SASL_SSL", "ssl.ca.location": authority.file}
    admin = {**options("admin", ADMIN, "SCRAM-SHA-512"), **tls}
    with FencepostProcess(data, options=given) as process:
        for address in process.bootstrap_servers.split(","):
            with connect(address, admin) as cluster:
                passwords = [new_password(each, USER, SALT) for each in MECHANISMS.values()]
                cluster.run(set_password(cluster.core, "alice", passwords))
                ask_for_settings(cluster, seen)
            for mechanism in ("PLAIN", *MECHANISMS):
                wrong = {**options("alice", WRONG, mechanism), **tls}
                with pytest.raises(ClientError) as refused, connect(address, wrong) as cluster:
                    cluster.metadata(())
                seen.append("".join(traceback.format_exception(refused.value)))
        seen.append(arguments_of(process.process.pid).decode("utf-8", "replace"))
    log = process.process.output
    assert [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    seen += [log, trace.read_text()]
    search_directory(data, [key.splitlines()[2].encode()])
    everything = "\n".join(seen)
    assert "ssl.keystore.key" in everything
    body = key.splitlines()[1:-1]
    assert [each for each in body if each in everything] == []
    assert [each for each in secrets() if each in everything.encode()] == []


@pytest.mark.parametrize("password", [None, WRONG])
def test_a_private_key_that_cannot_be_read_is_refused_without_its_text(
    tmp_path: Path, password: str | None
) -> None:
    chain, key = encrypted_key(Authority(tmp_path))
    config = {
        "listeners": "SSL://127.0.0.1:0",
        "ssl.keystore.certificate.chain": chain,
        "ssl.keystore.key": key,
        "ssl.key.password": password,
    }
    with pytest.raises(FencepostError) as refused:
        fencepost.Broker(config=config).start()
    shown = "".join(traceback.format_exception(refused.value))
    assert "ssl.k" in str(refused.value)
    assert [each for each in (*key.splitlines()[1:-1], WRONG) if each in shown] == []


@pytest.mark.parametrize(
    "setting", ["listener.name.x.plain.sasl.jaas.config", "ssl.key.password", "ssl.keystore.key"]
)
def test_a_secret_is_refused_as_an_argument(
    setting: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["serve", "--config", f"{setting}={WRONG}"]) == 1
    said = capfd.readouterr().err
    assert "--config-file" in said
    assert WRONG not in said


def test_a_jaas_setting_that_cannot_be_read_is_refused_without_its_text(tmp_path: Path) -> None:
    from fencepost.base.failures import ConfigError
    from fencepost.broker.settings.config import BrokerConfig

    for text in (WRONG, f'{PLAIN_JAAS} user_a="{WRONG}', f"{PLAIN_JAAS} password={WRONG};"):
        with pytest.raises(ConfigError) as refused:
            BrokerConfig({"listener.name.x.plain.sasl.jaas.config": text})
        assert WRONG not in str(refused.value)
        assert "listener.name.x.plain.sasl.jaas.config" in str(refused.value)
    assert len(SALT) == SALT_BYTES
