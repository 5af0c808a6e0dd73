"""The context of a listener: what it is made of, what is refused, and how it is replaced."""

from __future__ import annotations

import contextlib
import os
import ssl
import subprocess
from pathlib import Path

import pytest
import trustme

from fencepost.base.failures import ConfigError
from fencepost.broker.security.tls import RELOAD_SECONDS, Certificates, read_tls_settings
from fencepost.broker.settings.config import BrokerConfig
from tests.broker.security.certificates import ALICE, Authority, tls_config


@pytest.fixture(name="authority", scope="module")
def _authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def certificates(settings: dict[str, object], listener: str = "SSL") -> Certificates:
    config = BrokerConfig({name: str(value) for name, value in settings.items()})
    return Certificates(read_tls_settings(config, listener))


class Peers:
    """A client and a listener, without a socket."""

    def __init__(self, server: ssl.SSLContext, client: ssl.SSLContext) -> None:
        up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.server = server.wrap_bio(up, down, server_side=True)
        self.client = client.wrap_bio(down, up, server_hostname="127.0.0.1")

    def shake_hands(self) -> Peers:
        """Raises what the listener or the client does not accept."""
        for _ in range(4):
            for side in (self.client, self.server):
                with contextlib.suppress(ssl.SSLWantReadError):
                    side.do_handshake()
        return self


def meet(found: Certificates, client: ssl.SSLContext, now: float = 0.0) -> ssl.SSLObject:
    return Peers(found.current(now), client).shake_hands().server


# -- what it is made of


def test_a_client_is_known_by_the_name_in_its_certificate(authority: Authority) -> None:
    found = certificates(tls_config(authority, ssl_client_auth="required"))
    server = meet(found, authority.trusting(authority.client()))
    assert found.principal(server.getpeercert(binary_form=True)) == ALICE


def test_rules_make_the_principal(authority: Authority) -> None:
    rules = "RULE:^CN=(.*?),.*$/$1/U"
    found = certificates(
        tls_config(authority, ssl_client_auth="required", ssl_principal_mapping_rules=rules)
    )
    server = meet(found, authority.trusting(authority.client()))
    assert found.principal(server.getpeercert(binary_form=True)) == "User:ALICE"


def test_a_requested_certificate_may_be_missing_and_then_the_client_is_anonymous(
    authority: Authority,
) -> None:
    found = certificates(tls_config(authority, ssl_client_auth="requested"))
    server = meet(found, authority.trusting())
    assert found.principal(server.getpeercert(binary_form=True)) == "User:ANONYMOUS"


@pytest.mark.parametrize("client_auth", ["requested", "required"])
def test_a_certificate_that_is_not_trusted_is_refused(
    authority: Authority, tmp_path: Path, client_auth: str
) -> None:
    found = certificates(tls_config(authority, ssl_client_auth=client_auth))
    stranger = Authority(tmp_path, "strangers").client("mallory")
    itself = authority.client("expired", days=-1)
    for certificate in (stranger, itself):
        with pytest.raises(ssl.SSLCertVerificationError):
            meet(found, authority.trusting(certificate))


def test_settings_of_one_listener_win_over_those_of_all(authority: Authority) -> None:
    settings = tls_config(authority, ssl_client_auth="required") | {
        "listeners": "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
        "listener.security.protocol.map": "INSIDE:SSL,OUTSIDE:SSL",
        "listener.name.inside.ssl.client.auth": "none",
    }
    assert meet(certificates(settings, "INSIDE"), authority.trusting()).cipher()
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        meet(certificates(settings, "OUTSIDE"), authority.trusting())


def test_a_key_may_be_encrypted(authority: Authority, tmp_path: Path) -> None:
    locked = tmp_path / "locked.pem"
    plain = authority.listener("plain")
    command = ["openssl", "pkcs8", "-topk8", "-in", plain, "-passout", "pass:open-sesame"]
    key = subprocess.run(command, check=True, capture_output=True).stdout
    locked.write_bytes(key + Path(plain).read_bytes().partition(b"KEY-----\n")[2])
    chain = Path(plain).read_bytes()
    locked.write_bytes(key + chain[chain.index(b"-----BEGIN CERTIFICATE") :])
    locked.chmod(0o600)
    config = tls_config(authority, ssl_keystore_location=str(locked))
    assert meet(
        certificates(config | {"ssl.key.password": "open-sesame"}), authority.trusting()
    ).version()
    for wrong in ({}, {"ssl.key.password": "guess"}):
        with pytest.raises(ConfigError, match=r"ssl\.key\.password is not its password"):
            certificates(config | wrong)


def test_certificates_may_be_given_as_text_and_leave_no_file(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    whole = Path(authority.listener()).read_text()
    cut = whole.index("-----BEGIN CERTIFICATE")
    found = certificates(
        {
            "listeners": "SSL://127.0.0.1:0",
            "ssl.keystore.key": whole[:cut],
            "ssl.keystore.certificate.chain": f"# Größe\n{whole[cut:]}",
            "ssl.truststore.certificates": f"# Größe\n{Path(authority.file).read_text()}",
            "ssl.client.auth": "required",
        }
    )
    assert meet(found, authority.trusting(authority.client())).getpeercert()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_a_client_may_use_the_versions_that_are_enabled(authority: Authority, version: str) -> None:
    found = certificates(tls_config(authority, ssl_enabled_protocols=version))
    for other in ("TLSv1.2", "TLSv1.3"):
        client = authority.trusting()
        client.maximum_version = client.minimum_version = getattr(
            ssl.TLSVersion, other.replace(".", "_")
        )
        if other == version:
            assert meet(found, client).version() == version
        else:
            with pytest.raises(ssl.SSLError):
                meet(found, client)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tls_1_1_is_refused(authority: Authority) -> None:
    client = authority.trusting()
    client.set_ciphers("ALL:@SECLEVEL=0")
    client.minimum_version = client.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError, match="UNSUPPORTED_PROTOCOL"):
        meet(certificates(tls_config(authority)), client)


def test_cipher_suites_are_named_as_in_java(authority: Authority) -> None:
    suite = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"
    found = certificates(tls_config(authority, ssl_cipher_suites=suite))
    cipher = meet(found, authority.trusting()).cipher()
    assert cipher is not None
    assert cipher[:2] == ("ECDHE-ECDSA-AES256-GCM-SHA384", "TLSv1.2")


# -- what is refused


def refusal(authority: Authority, **settings: str) -> str:
    with pytest.raises(ConfigError) as caught:
        certificates(tls_config(authority, **settings))
    return str(caught.value)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"ssl_keystore_location": ""}, "has no certificate: set ssl.keystore.location"),
        ({"ssl_keystore_location": "/nowhere.pem"}, "/nowhere.pem: No such file or directory"),
        ({"ssl_keystore_key": "x"}, "needs either ssl.keystore.location, or both"),
        ({"ssl_client_auth": "required", "ssl_truststore_location": ""}, "trusts no authority"),
        ({"ssl_client_auth": "always"}, "one of none, requested, required"),
        ({"ssl_truststore_certificates": "x"}, "it needs one of them"),
        ({"ssl_truststore_location": "/nowhere.pem"}, "/nowhere.pem: No such file or directory"),
        (
            {"ssl_truststore_location": "", "ssl_truststore_certificates": "x"},
            "certificates of authorities, as PEM",
        ),
        ({"ssl_keystore_type": "JKS"}, "ssl.keystore.type must be PEM"),
        ({"ssl_truststore_type": "PKCS12"}, "ssl.truststore.type must be PEM"),
        ({"ssl_enabled_protocols": "TLSv1.1,TLSv1.2"}, "a list of TLSv1.2, TLSv1.3"),
        ({"ssl_cipher_suites": "TLS_RSA_WITH_RC4_128_MD5"}, "has TLS_RSA_WITH_RC4_128_MD5; choose"),
        ({"ssl_cipher_suites": "TLS_AES_128_GCM_SHA256"}, "name all of them"),
        ({"ssl_principal_mapping_rules": "RULE:x"}, "cannot be read from 'RULE:x' on"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_with_a_sentence(
    authority: Authority, settings: dict[str, str], sentence: str
) -> None:
    assert sentence in refusal(authority, **settings)


def test_a_key_that_everybody_can_read_is_refused(authority: Authority, tmp_path: Path) -> None:
    key = tmp_path / "open.pem"
    key.write_bytes(Path(authority.listener()).read_bytes())
    key.chmod(0o644)
    assert "every user of this machine can read" in refusal(
        authority, ssl_keystore_location=str(key)
    )
    key.chmod(0o640)  # For the group of a service.
    certificates(tls_config(authority, ssl_keystore_location=str(key)))


@pytest.mark.parametrize(
    ("content", "form"),
    [
        (b"\xfe\xed\xfe\xed\0\0\0\2", "a Java keystore (JKS)"),
        (b"\x30\x82\x0a\x0b\2\1\3", "a PKCS12 keystore"),
        (b"", "no PEM file"),
        (b"hello", "no PEM file"),
    ],
)
@pytest.mark.parametrize("setting", ["ssl_keystore_location", "ssl_truststore_location"])
def test_other_forms_than_pem_are_refused_with_the_command_that_converts_them(
    authority: Authority, tmp_path: Path, setting: str, content: bytes, form: str
) -> None:
    store = tmp_path / "store"
    store.write_bytes(content)
    store.chmod(0o600)
    sentence = refusal(authority, **{setting: str(store)})
    assert form in sentence
    assert "openssl pkcs12" in sentence


def test_a_key_of_another_certificate_is_refused(authority: Authority, tmp_path: Path) -> None:
    one, other = (Path(authority.listener(name)).read_text() for name in ("one", "other"))
    cut = "-----BEGIN CERTIFICATE"
    mixed = tmp_path / "mixed.pem"
    mixed.write_text(one[: one.index(cut)] + other[other.index(cut) :])
    mixed.chmod(0o600)
    assert "the private key does not belong to the certificate" in refusal(
        authority, ssl_keystore_location=str(mixed)
    )


# -- new certificates


def test_a_new_connection_takes_new_certificates_after_a_second(authority: Authority) -> None:
    found = certificates(tls_config(authority))
    first = found.current(RELOAD_SECONDS)
    authority.listener()
    assert found.current(RELOAD_SECONDS * 1.5) is first
    second = found.current(RELOAD_SECONDS * 2)
    assert second is not first
    assert found.current(RELOAD_SECONDS * 4) is second


def test_after_a_change_of_authorities_clients_are_verified_by_the_new_ones(
    tmp_path: Path,
) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(Path(old.file).read_bytes())
    found = certificates(
        tls_config(old, ssl_client_auth="required", ssl_truststore_location=str(trusted))
    )
    mine, theirs = old.client(), new.client()
    assert meet(found, old.trusting(mine), 1.0).version()
    trusted.write_bytes(Path(new.file).read_bytes() + b"\n")
    assert meet(found, old.trusting(theirs), 3.0).version()
    # The old certificate, and none at all: both are refused now.
    with pytest.raises(ssl.SSLCertVerificationError):
        meet(found, old.trusting(mine), 3.0)
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        meet(found, old.trusting(), 3.0)


@pytest.mark.parametrize("damage", ["cut", "removed", "open"])
def test_certificates_that_cannot_be_used_change_nothing_until_they_can(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    path = tmp_path / "listener.pem"
    whole = Path(authority.listener()).read_bytes()
    path.write_bytes(whole)
    path.chmod(0o600)
    found = certificates(tls_config(authority, ssl_keystore_location=str(path)))
    first = found.current(1.0)
    if damage == "cut":
        path.write_bytes(whole[:-100])
    elif damage == "removed":
        path.unlink()
    else:
        path.chmod(0o604)
    assert found.current(3.0) is first
    assert found.current(5.0) is first
    assert [each.getMessage()[:37] for each in caplog.records] == [
        "listener SSL keeps its certificates: "
    ]
    path.write_bytes(Path(authority.listener()).read_bytes())
    path.chmod(0o600)
    os.utime(path, ns=(1, 1))
    assert found.current(7.0) is not first
    assert meet(found, authority.trusting(), 7.0).version()


def test_a_listener_for_another_host_or_of_another_authority_is_refused_by_its_clients(
    authority: Authority, tmp_path: Path
) -> None:
    wrong_host = authority.listener("wrong-host", "elsewhere.test")
    found = certificates(tls_config(authority, ssl_keystore_location=wrong_host))
    meet_at = authority.trusting()
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
        meet(found, meet_at)
    with pytest.raises(ssl.SSLCertVerificationError, match="verify failed"):
        meet(certificates(tls_config(authority)), Authority(tmp_path, "others").trusting())


def test_a_certificate_that_signed_itself_is_refused(authority: Authority) -> None:
    found = certificates(tls_config(authority, ssl_client_auth="required"))
    alone = trustme.CA().issue_cert("alone@client.test", common_name="alice")
    path = authority.save(alone, "alone")
    with pytest.raises(ssl.SSLCertVerificationError):
        meet(found, authority.trusting(path))


def test_an_expired_certificate_is_a_warning_at_the_start_and_a_refusal_for_clients(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    certificates(tls_config(authority))
    assert caplog.messages == []
    expired = authority.listener("expired-listener", days=-1)
    found = certificates(tls_config(authority, ssl_keystore_location=expired))
    (warning,) = caplog.messages
    assert warning.startswith("ssl.keystore.location of listener SSL: the certificate has expired")
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate has expired"):
        meet(found, authority.trusting())
