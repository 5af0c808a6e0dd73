"""No secret leaves the broker: not in logs, traces, taps, dumps, settings, metrics or arguments.

Method: three broker processes with everything that writes switched on. Passwords are planted in
every place that takes one, and used, rightly and wrongly; then everything that was printed, sent
or can be seen from outside is searched for them, also in hexadecimal and base64.
"""

from __future__ import annotations

import base64
import contextlib
import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from fencepost.base.scram import MECHANISMS, SALT_BYTES, credential_of, new_password
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
from tests.forensics.tap.running import running_tap
from tools.fencepost_process import FencepostProcess

ADMIN, JAAS, USER, WRONG, DYNAMIC = (
    f"planted-{name}-secret" for name in ("admin", "jaas", "user", "wrong", "dynamic")
)
SALT = b"planted-salt-16b"
SALTED = {each.number: each.salted_password(USER, SALT, 4096) for each in MECHANISMS.values()}
PLAIN_JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def secrets() -> list[bytes]:
    """Everything that lets somebody in, or helps to guess it, in every spelling."""
    found = [each.encode() for each in (ADMIN, JAAS, USER, WRONG, DYNAMIC)]
    found.append(SALT)
    for number, salted in SALTED.items():
        mechanism = next(each for each in MECHANISMS.values() if each.number == number)
        found += [salted, *credential_of(mechanism, salted, SALT, 4096)[1:3]]
    spelled = [base64.b64encode(each) for each in found]
    spelled += [each.hex().encode() for each in found]
    spelled += [repr(each)[2:-1].encode() for each in found]
    return [*found, *spelled]


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
    from fencepost.client.calls import AnyBroker, call_one

    def ask(api: ApiKey, request: Any) -> None:
        reply = cluster.run(
            call_one(cluster.core, AnyBroker(), api, request, lambda form: (0, None))
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
    described = DescribeConfigsResource(resource_type=4, resource_name="", configuration_keys=None)
    ask(
        ApiKey.DESCRIBE_CONFIGS,
        DescribeConfigsRequest(
            resources=[described], include_synonyms=True, include_documentation=True
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
    logs = find_files([data / "__cluster_metadata-0"])
    for _, rows in dump_files(logs, DumpOptions(records=True, values=True)):
        seen += [repr(row) for row in rows]
    assert "UserScramCredentialRecord" in "".join(seen)
    main.run(["user", "list", "--data", str(data)])
    main.run(["check", str(data)])
    seen += capfd.readouterr()
    everything = "\n".join(seen).encode()
    assert [each for each in secrets() if each in everything] == []


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
