r"""Parses `sasl.jaas.config` as Java users write it.

    org.apache.kafka.common.security.scram.ScramLoginModule required username="alice"
    password="a\\"b";

One login module, a flag, then key=value pairs, then a semicolon. Values may be in double
quotes, where a backslash escapes the next character; without quotes they end at white space or the
semicolon. Errors name what is missing and never quote the text, because it holds the password.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from fencepost.base.failures import ConfigError
from fencepost.client.secret import Secret

_MODULES: Final = {
    "org.apache.kafka.common.security.plain.PlainLoginModule": "PLAIN",
    "org.apache.kafka.common.security.scram.ScramLoginModule": "SCRAM",
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule": "OAUTHBEARER",
}
_SHADED: Final = "kafkashaded."
"""Databricks and other vendors ship the same classes under a prefix."""

MSK_IAM: Final = (
    "AWS_MSK_IAM is spoken by Amazon's Java library alone; the same brokers accept OAUTHBEARER. "
    "With `pip install aws-msk-iam-sasl-signer-python`: sasl.mechanism=OAUTHBEARER and "
    'sasl.oauthbearer.token.command=python -c "from aws_msk_iam_sasl_signer import '
    "MSKAuthTokenProvider as p; print(p.generate_auth_token('REGION')[0])\", or in Python "
    "oauth_cb=lambda _: MSKAuthTokenProvider.generate_auth_token('REGION')"
)
_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})
_HEAD: Final = re.compile(r"\s*(?P<module>[\w.$]+)\s+(?P<flag>\w+)\b")
_PAIR: Final = re.compile(
    r'\s*(?P<name>[\w.\-]+)\s*=\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>[^\s;"]+))'
)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)


_USER: Final = "user_"
"""With the name of a user behind it: a password that a broker accepts, in Kafka's PLAIN module."""


class JaasLogin(NamedTuple):
    """A username and password, and the family of mechanisms they are for."""

    family: str
    username: str
    password: Secret


def parse_jaas(text: str) -> JaasLogin:
    """Returns the login of a JAAS configuration; ConfigError if it has no supported one."""
    family, pairs = _read_module(text)
    if family == "OAUTHBEARER":
        raise ConfigError("sasl.jaas.config is for OAUTHBEARER: set sasl.mechanism=OAUTHBEARER")
    for name in ("username", "password"):
        if name not in pairs:
            raise ConfigError(
                f'sasl.jaas.config has no {name}: add {name}="..." before the semicolon'
            )
    return JaasLogin(family, pairs["username"], Secret(pairs["password"]))


def read_oauth_module(text: str) -> dict[str, str]:
    """Returns the options of OAuthBearerLoginModule, such as clientId; none of an empty text."""
    if not text.strip():
        return {}
    family, pairs = _read_module(text)
    if family != "OAUTHBEARER":
        raise ConfigError(
            "sasl.mechanism is OAUTHBEARER, but the login module of sasl.jaas.config is for "
            f"{family}"
        )
    return pairs


def parse_jaas_users(text: str) -> dict[str, Secret]:
    """Returns the users of a broker's JAAS configuration, `user_alice="..."`, with passwords."""
    family, pairs = _read_module(text)
    if family != "PLAIN":
        raise ConfigError("sasl.jaas.config of PLAIN must name PlainLoginModule")
    users = {
        name.removeprefix(_USER): Secret(value)
        for name, value in pairs.items()
        if name.startswith(_USER)
    }
    if not users or not all(users):
        raise ConfigError('sasl.jaas.config has no user: add user_NAME="..." before the semicolon')
    return users


def _read_module(text: str) -> tuple[str, dict[str, str]]:
    head = _HEAD.match(text)
    if head is None or head["flag"].lower() not in _FLAGS:
        raise ConfigError(
            'sasl.jaas.config must look like: <login module> required username="..." '
            'password="...";'
        )
    if head["module"].endswith(".IAMLoginModule"):
        raise ConfigError(MSK_IAM)
    family = _MODULES.get(head["module"].removeprefix(_SHADED))
    if family is None:
        raise ConfigError(
            f"sasl.jaas.config names the login module {head['module']}, which is not supported: "
            "use PlainLoginModule, ScramLoginModule or OAuthBearerLoginModule"
        )
    return family, _read_pairs(text, head.end())


def _read_pairs(text: str, position: int) -> dict[str, str]:
    pairs: dict[str, str] = {}
    while (pair := _PAIR.match(text, position)) is not None:
        quoted = pair["quoted"]
        pairs[pair["name"]] = pair["bare"] if quoted is None else _ESCAPE.sub(r"\1", quoted)
        position = pair.end()
    if text[position:].strip() != ";":
        raise ConfigError(
            "sasl.jaas.config cannot be parsed to its end: put every value in double quotes "
            "and end with one semicolon"
        )
    return pairs
