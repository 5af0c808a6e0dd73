"""What a broker refuses before it starts: listeners that strangers could use."""

from __future__ import annotations

import pytest

from fencepost.base.failures import ConfigError
from fencepost.broker.settings.config import BrokerConfig
from fencepost.broker.settings.refusals import refuse_open_listeners


@pytest.mark.parametrize(
    ("protocol", "client_auth", "is_open"),
    [
        ("PLAINTEXT", "none", True),
        ("SSL", "none", True),
        ("SSL", "requested", True),
        ("SSL", "required", False),
    ],
)
def test_a_listener_for_other_machines_needs_tls_and_authentication_or_permission(
    protocol: str, client_auth: str, is_open: bool
) -> None:
    config = BrokerConfig(
        {
            "listeners": "PLAINTEXT://127.0.0.1:1,OUTSIDE://0.0.0.0:2",
            "advertised.listeners": "OUTSIDE://kafka.test:2",
            "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,OUTSIDE:{protocol}",
            "listener.name.outside.ssl.client.auth": client_auth,
        }
    )
    refuse_open_listeners(config, allow_remote=True)
    if is_open:
        with pytest.raises(ConfigError, match="--allow-remote"):
            refuse_open_listeners(config, allow_remote=False)
    else:
        refuse_open_listeners(config, allow_remote=False)
