"""The SASL settings of a listener, and what is refused with which sentence."""

from __future__ import annotations

import pytest

from fencepost.base.failures import ConfigError
from fencepost.broker.settings.config import BrokerConfig, check_dynamic
from fencepost.broker.settings.sasl import sasl_listener

LISTENER = {"listeners": "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0"}
MAP = {"listener.security.protocol.map": "INSIDE:SASL_PLAINTEXT,OUTSIDE:SASL_PLAINTEXT"}
JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required "


def config(**settings: str) -> BrokerConfig:
    return BrokerConfig(
        {**LISTENER, **MAP, **{name.replace("__", "."): text for name, text in settings.items()}}
    )


def test_a_listener_has_its_own_settings_or_those_of_the_broker() -> None:
    found = BrokerConfig(
        {
            **LISTENER,
            **MAP,
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "connections.max.reauth.ms": "1000",
            "listener.name.inside.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            "listener.name.inside.connections.max.reauth.ms": "2000",
            "listener.name.inside.plain.connections.max.reauth.ms": "3000",
            "listener.name.inside.plain.sasl.jaas.config": f'{JAAS}user_a="1" user_b="2";',
        }
    )
    inside, outside = (sasl_listener(found, name) for name in ("INSIDE", "OUTSIDE"))
    assert inside.mechanisms == ("PLAIN", "SCRAM-SHA-256")
    assert inside.reauth_ms == {"PLAIN": 3000, "SCRAM-SHA-256": 2000}
    assert inside.passwords is not None
    assert {user: each.reveal() for user, each in inside.passwords.items()} == {"a": "1", "b": "2"}
    assert outside == ("OUTSIDE", ("SCRAM-SHA-512",), {"SCRAM-SHA-512": 1000}, None)
    assert found.warnings == []


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("sasl.enabled.mechanisms", "OAUTHBEARER", "checks no tokens"),
        ("sasl.enabled.mechanisms", "GSSAPI", "does not speak Kerberos"),
        ("sasl.enabled.mechanisms", "", "a list of PLAIN"),
        ("listener.name.inside.sasl.enabled.mechanisms", "PLAIN,X", "a list of PLAIN"),
        ("listener.name.inside.plain.connections.max.reauth.ms", "-1", "0"),
        ("listener.name.inside.plain.connections.max.reauth.ms", "soon", "whole number"),
        ("listener.name.inside.plain.sasl.jaas.config", f"{JAAS};", "has no user"),
        ("connection.failed.authentication.delay.ms", "-1", "at least 0"),
        ("sasl.server.max.receive.size", "0", "between 1 and 32764"),
        ("sasl.server.max.receive.size", "524288", "between 1 and 32764"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused(name: str, value: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        BrokerConfig({name: value})
    assert said in str(refused.value)
    assert name in str(refused.value)


def test_a_mechanism_may_be_written_in_capitals() -> None:
    prefix = "listener.name.inside."
    found = BrokerConfig(
        {
            **LISTENER,
            **MAP,
            f"{prefix}sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            f"{prefix}SCRAM-SHA-512.connections.max.reauth.ms": "2000",
            f"{prefix}PLAIN.sasl.jaas.config": f'{JAAS}user_a="1";',
        }
    )
    inside = sasl_listener(found, "INSIDE")
    assert inside.reauth_ms["SCRAM-SHA-512"] == 2000
    assert inside.passwords is not None
    assert found.warnings == []


def test_a_login_module_of_scram_is_accepted_and_has_no_effect() -> None:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    found = BrokerConfig(
        {
            "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
            "listener.name.plaintext.scram-sha-256.sasl.jaas.config": module,
        }
    )
    (warning,) = found.warnings
    assert "the users of SCRAM are in the metadata log" in warning


@pytest.mark.parametrize(
    "name",
    [
        "sasl.enabled.mechanisms",
        "listener.name.inside.sasl.enabled.mechanisms",
        "listener.name.inside.plain.sasl.jaas.config",
    ],
)
def test_no_setting_of_logins_changes_while_the_broker_runs(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be changed while the broker runs"):
        check_dynamic(name, "x", for_cluster=True)
