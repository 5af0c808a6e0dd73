"""Tokens of an identity provider, for a client id and secret (RFC 6749, 4.4).

The same values have different names in Kafka's Java clients, in Spark, which hands its options to
them, and in librdkafka; all of them are read:

    endpoint   sasl.oauthbearer.token.endpoint.url
    id         sasl.oauthbearer.client.credentials.client.id, sasl.oauthbearer.client.id, or
               clientId in sasl.jaas.config; the secret likewise
    scope      sasl.oauthbearer.scope, or scope in sasl.jaas.config; may be missing

A process keeps a token for four fifths of the time that the provider gives it, so that a job with
hundreds of tasks does not ask hundreds of times.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from fencepost.base.failures import ConfigError
from fencepost.client.failures import AuthenticationFailed
from fencepost.client.jaas import read_oauth_module
from fencepost.client.secret import Secret

ENDPOINT: Final = "sasl.oauthbearer.token.endpoint.url"
_TIMEOUT_SECONDS: Final = 30
_MAX_ANSWER_BYTES: Final = 1_048_576
_KEPT_SHARE: Final = 0.8
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_NAMES: Final = {
    "clientId": ("sasl.oauthbearer.client.credentials.client.id", "sasl.oauthbearer.client.id"),
    "clientSecret": (
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.client.secret",
    ),
    "scope": ("sasl.oauthbearer.scope",),
}

_kept: dict[ClientCredentials, tuple[str, float]] = {}


class ClientCredentials(NamedTuple):
    """Called like an `oauth_cb`, it returns a token."""

    endpoint: str
    client_id: str
    client_secret: Secret
    scope: str

    def __call__(self, _config: str) -> str:
        kept, until = _kept.get(self, ("", 0.0))
        if time.monotonic() < until:
            return kept
        answer = self._ask()
        token = answer.get("access_token")
        if not isinstance(token, str):
            raise AuthenticationFailed(f"{self.endpoint} returned no access_token")
        lifetime = answer.get("expires_in")
        if isinstance(lifetime, int | float):
            _kept[self] = token, time.monotonic() + lifetime * _KEPT_SHARE
        return token

    def _ask(self) -> Mapping[str, Any]:
        form = {"grant_type": "client_credentials"} | ({"scope": self.scope} if self.scope else {})
        request = urllib.request.Request(  # noqa: S310 - the scheme was checked.
            self.endpoint,
            urlencode(form).encode(),
            {"Accept": "application/json", "Authorization": f"Basic {self._basic()}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310
                found = json.loads(answer.read(_MAX_ANSWER_BYTES))
        except urllib.error.HTTPError as problem:
            with problem:
                said = problem.read(200).decode("utf-8", "replace")
            raise AuthenticationFailed(
                f"{self.endpoint} refused client {self.client_id}: HTTP {problem.code} {said}"
            ) from None
        except (OSError, ValueError) as problem:
            raise AuthenticationFailed(f"no token from {self.endpoint}: {problem}") from problem
        if not isinstance(found, dict):
            raise AuthenticationFailed(f"{self.endpoint} returned no access_token")
        return found

    def _basic(self) -> str:
        from base64 import b64encode

        pair = f"{quote(self.client_id, '')}:{quote(self.client_secret.reveal(), '')}"
        return b64encode(pair.encode()).decode()


def read_client_credentials(given: Mapping[str, Any]) -> ClientCredentials | None:
    """What the options say; None if they name no endpoint."""
    if ENDPOINT not in given:
        return None
    endpoint = str(given[ENDPOINT])
    parts = urlsplit(endpoint)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise ConfigError(f"{ENDPOINT} must begin with https://, because a secret is sent there")
    jaas = read_oauth_module(str(given.get("sasl.jaas.config", "")))
    values = {
        name: next((str(given[each]) for each in options if each in given), jaas.get(name, ""))
        for name, options in _NAMES.items()
    }
    for name in ("clientId", "clientSecret"):
        if not values[name]:
            raise ConfigError(
                f"{ENDPOINT} needs a client: set {_NAMES[name][0]}, or {name} in sasl.jaas.config"
            )
    secret = Secret(values["clientSecret"])
    return ClientCredentials(endpoint, values["clientId"], secret, values["scope"])
