"""TLS with certificates created for this run: trusted ones, others, and the messages."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from typing import TYPE_CHECKING

import pytest

from fencepost.base.failures import ConfigError
from fencepost.client.blocking import connect
from fencepost.client.failures import AuthenticationFailed
from fencepost.client.options import Tls
from fencepost.client.secret import Secret
from fencepost.client.tls import tls_context
from fencepost.wire.forms.describe_cluster import DescribeClusterBroker, DescribeClusterResponse
from tests.broker.security.certificates import Authority
from tests.client.tcp_broker import TcpBroker
from tests.client.test_sockets import first

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("certificates")
    for name, subject in [("here", "IP:127.0.0.1"), ("elsewhere", "DNS:elsewhere.example")]:
        _openssl(
            made,
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj "
            f"/CN={name} "
            f"-addext subjectAltName={subject} -keyout {name}.key -out {name}.pem",
        )
    _openssl(made, "pkcs8 -topk8 -in here.key -passout pass:open-sesame -out locked.key")
    return made


def _openssl(folder: Path, arguments: str) -> None:
    subprocess.run(["openssl", *arguments.split()], cwd=folder, check=True, capture_output=True)


def server(folder: Path, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    return context


def trusting(folder: Path, name: str, **more: str) -> dict[str, str]:
    return {"security.protocol": "SSL", "ssl.ca.location": str(folder / f"{name}.pem"), **more}


def test_a_trusted_broker_is_accepted(folder: Path) -> None:
    brokers = [DescribeClusterBroker(broker_id=i, host="h" * 1000) for i in range(2_000)]
    large = first(DescribeClusterResponse(brokers=brokers))
    with (
        TcpBroker(large, context=server(folder, "here")) as broker,
        connect(broker.address, trusting(folder, "here")) as cluster,
    ):
        assert len(cluster.describe_cluster().brokers) == 2_000
        assert cluster.describe_cluster().cluster_id == "tcp"


def test_an_untrusted_broker_is_refused(folder: Path) -> None:
    with (
        TcpBroker(context=server(folder, "here")) as broker,
        connect(broker.address, trusting(folder, "elsewhere")) as cluster,
        pytest.raises(AuthenticationFailed, match=r"set ssl\.ca\.location"),
    ):
        cluster.describe_cluster()


def test_a_certificate_for_another_host_is_refused_unless_the_check_is_off(folder: Path) -> None:
    name_check = "ssl.endpoint.identification.algorithm"
    with TcpBroker(context=server(folder, "elsewhere")) as broker:
        with (
            connect(broker.address, trusting(folder, "elsewhere")) as cluster,
            pytest.raises(AuthenticationFailed, match="correct the host name"),
        ):
            cluster.describe_cluster()
        with connect(broker.address, trusting(folder, "elsewhere") | {name_check: ""}) as cluster:
            assert cluster.describe_cluster().cluster_id == "tcp"


def test_an_expired_certificate_is_one_error_that_says_who_renews_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.listener(days=-1))
    options = {"security.protocol": "SSL", "ssl.ca.location": authority.file}
    with (
        TcpBroker(context=context) as broker,
        connect(broker.address, options) as cluster,
        pytest.raises(AuthenticationFailed, match=r"has expired.* must renew it") as refused,
    ):
        cluster.describe_cluster()
    assert "ssl.ca.location" not in str(refused.value), "there is nothing to correct here"


def test_a_port_without_tls_is_refused_with_a_hint(folder: Path) -> None:
    def babble(*_: object) -> object:
        raise AssertionError("no request arrives here")

    with (
        TcpBroker(babble) as broker,
        connect(
            broker.address, trusting(folder, "here") | {"default.api.timeout.ms": "200"}
        ) as cluster,
        pytest.raises((AuthenticationFailed, TimeoutError)),
    ):
        cluster.describe_cluster()


def test_a_key_may_be_given_as_encrypted_text(folder: Path) -> None:
    text = f"# Größe\n{(folder / 'here.pem').read_text()}"
    tls_context(
        Tls(
            ca_text=text,
            certificate_text=text,
            key_text=Secret((folder / "locked.key").read_text()),
            key_password=Secret("open-sesame"),
        )
    )


@pytest.mark.parametrize("password", [None, Secret("wrong-word")])
def test_an_encrypted_key_without_its_password_fails_at_once(
    folder: Path, password: Secret | None
) -> None:
    pem = str(folder / "here.pem")
    locked = Tls(certificate_path=pem, key_path=str(folder / "locked.key"), key_password=password)
    with pytest.raises(ConfigError, match=r"ssl\.key\.password") as caught:
        tls_context(locked)
    assert "wrong-word" not in str(caught.value)


def test_an_invalid_certificate_file_is_named(folder: Path) -> None:
    (folder / "empty.pem").write_text("nothing")
    with pytest.raises(ConfigError, match=r"ssl\.ca\.location"):
        tls_context(Tls(ca_path=str(folder / "empty.pem")))
    with pytest.raises(ConfigError, match=r"ssl\.keystore\.key"):
        tls_context(Tls(certificate_text="chain without key"))
