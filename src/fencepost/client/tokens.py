"""Tokens for OAUTHBEARER: from a function of the user's program, a command or an identity provider.

    oauth_cb                         a function, as confluent-kafka has it: called with the value of
                                     sasl.oauthbearer.config, it returns a token, or a tuple that
                                     begins with one (token, expiry, principal, extensions)
    sasl.oauthbearer.token.command   a command line; the token is what it prints
    sasl.oauthbearer.token.endpoint.url   an identity provider: client_credentials.py

Functions and commands are asked for each connection, so a token is as fresh as it can be; a slow
one should keep its tokens for as long as they are valid. Libraries make such tokens: for MSK IAM
`aws-msk-iam-sasl-signer-python`, for Azure Event Hubs `azure-identity`.

A token is a password: it is a `Secret`, and what a command prints to standard error is not shown.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from fencepost.base.failures import ConfigError
from fencepost.client.client_credentials import ENDPOINT, read_client_credentials
from fencepost.client.failures import AuthenticationFailed
from fencepost.client.jaas import read_oauth_module
from fencepost.client.secret import Secret

_EXTENSION: Final = "extension_"
"""With a name behind it, in Java's login module: a SASL extension."""

COMMAND_SECONDS: Final = 30
"""How long a command may take; most ask a server on the network."""


class Token(NamedTuple):
    """A token, and the SASL extensions that some brokers want beside it."""

    text: Secret
    extensions: Mapping[str, str] = {}


class TokenSource:
    """Where tokens come from."""

    def __init__(
        self,
        function: Callable[[str], Any] | None,
        command: str | None,
        config: str,
        extensions: Mapping[str, str],
    ) -> None:
        assert (function is None) != (command is None), "a function or a command"
        self._function = function
        self._command = command
        self._config = config
        self._extensions = dict(extensions)

    def __repr__(self) -> str:
        return f"<tokens of {'a command' if self._function is None else 'a function'}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenSource) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((self._function, self._command, self._config))

    def get(self) -> Token:
        """A new token; AuthenticationFailed if there is none."""
        given = self._ask_command() if self._function is None else self._call(self._function)
        extensions: Mapping[str, str] = self._extensions
        if isinstance(given, tuple):
            if len(given) > 3 and given[3]:
                extensions = {**extensions, **given[3]}
            given = given[0] if given else None
        if not isinstance(given, str) or not given.strip():
            raise AuthenticationFailed(
                "the token source returned no token: oauth_cb must return a text, or a tuple that "
                "begins with one"
            )
        token = given.strip()
        if not token.isascii() or not token.isprintable() or " " in token:
            raise AuthenticationFailed(
                "the token source returned more than a token: it must be one word of ASCII"
            )
        return Token(Secret(token), extensions)

    def _call(self, function: Callable[[str], Any]) -> Any:
        try:
            return function(self._config)
        except AuthenticationFailed:
            raise
        except Exception as problem:
            raise AuthenticationFailed(
                f"oauth_cb failed: {type(problem).__name__}: {problem}"
            ) from problem

    def _ask_command(self) -> str:
        assert self._command is not None
        try:
            done = subprocess.run(  # noqa: S602 - a command line is what the option holds.
                self._command,
                shell=True,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=COMMAND_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise AuthenticationFailed(
                f"sasl.oauthbearer.token.command took longer than {COMMAND_SECONDS} s"
            ) from None
        if done.returncode:
            raise AuthenticationFailed(
                f"sasl.oauthbearer.token.command ended with exit code {done.returncode}: run it "
                "by hand to see why"
            )
        return done.stdout.decode("utf-8", "replace")


def read_token_source(given: Mapping[str, Any]) -> TokenSource:
    """The source that the options name; ConfigError unless there is exactly one."""
    command = given.get("sasl.oauthbearer.token.command")
    credentials = read_client_credentials(given)
    if [given.get("oauth_cb"), command, credentials].count(None) != 2:
        raise ConfigError(
            "OAUTHBEARER needs one source of tokens: oauth_cb, a function; "
            f"sasl.oauthbearer.token.command, a command that prints one; or {ENDPOINT}, an "
            "identity provider, with a client id and secret"
        )
    function: Any = given.get("oauth_cb")
    function = credentials if function is None else function
    if function is not None and not callable(function):
        raise ConfigError("oauth_cb must be a function that returns a token")
    own = read_oauth_module(str(given.get("sasl.jaas.config", "")))
    extensions = {
        name.removeprefix(_EXTENSION): value
        for name, value in own.items()
        if name.startswith(_EXTENSION)
    }
    return TokenSource(
        function,
        None if command is None else str(command),
        str(given.get("sasl.oauthbearer.config", "")),
        extensions | _read_extensions(str(given.get("sasl.oauthbearer.extensions", ""))),
    )


def _read_extensions(text: str) -> dict[str, str]:
    extensions = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals or not name:
            raise ConfigError(
                f"sasl.oauthbearer.extensions has {part!r}; write NAME=VALUE,NAME=VALUE"
            )
        extensions[name] = value
    return extensions
