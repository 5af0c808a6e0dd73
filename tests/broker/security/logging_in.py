"""Our client's side of a login, on a stage: what a user, a stranger and an attacker send."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from fencepost.base.scram import MECHANISMS
from fencepost.client.options import Login
from fencepost.client.sasl import sasl_exchange
from fencepost.client.secret import Secret
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from fencepost.wire.forms.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from fencepost.wire.forms.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tests.broker.node_stage import Line, Stage

SCRAM: Final = "SCRAM-SHA-256"
SALT: Final = b"salt of the test"
ALL: Final = ("PLAIN", *MECHANISMS)
SASL: Final = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": ",".join(ALL),
}


def upsertion(
    user: str, password: str, mechanism: str = SCRAM, iterations: int = 4096
) -> ScramCredentialUpsertion:
    """What kafka-configs.sh sends for a new password."""
    scram = MECHANISMS[mechanism]
    return ScramCredentialUpsertion(
        name=user,
        mechanism=scram.number,
        iterations=iterations,
        salt=SALT,
        salted_password=scram.salted_password(password, SALT, iterations),
    )


def setting(
    users: Iterable[ScramCredentialUpsertion], removed: Iterable[tuple[str, str]] = ()
) -> AlterUserScramCredentialsRequest:
    return AlterUserScramCredentialsRequest(
        upsertions=list(users),
        deletions=[
            ScramCredentialDeletion(name=name, mechanism=MECHANISMS[mechanism].number)
            for name, mechanism in removed
        ],
    )


def secured(settings: Mapping[str, str] | None = None, **more: Any) -> Stage:
    """A broker with one listener, which has SASL, and the user alice with the password pencil."""
    stage = Stage(settings={**SASL, **(settings or {})}, **more).start()
    give_passwords(stage, upsertion("alice", "pencil"), upsertion("bob", "chalk"))
    return stage


def give_passwords(stage: Stage, *users: ScramCredentialUpsertion) -> None:
    """Sets users past the listener, which lets nobody in before."""
    from fencepost.coordinator.metadata.users import Upsertion

    outcomes: list[Any] = []
    stage.node.controller.alter_users(
        [
            Upsertion(each.name, each.mechanism, each.salt, each.salted_password, each.iterations)
            for each in users
        ],
        outcomes.extend,
    )
    stage.settle()
    assert [each.refusal for each in outcomes] == [None] * len({each.name for each in users})


def handshake(line: Line, mechanism: str = SCRAM, version: int = 1) -> SaslHandshakeResponse:
    reply = line.call(ApiKey.SASL_HANDSHAKE, version, SaslHandshakeRequest(mechanism=mechanism))
    assert isinstance(reply, SaslHandshakeResponse)
    return reply


def say(line: Line, message: bytes, version: int = 2) -> SaslAuthenticateResponse:
    reply = line.call(
        ApiKey.SASL_AUTHENTICATE, version, SaslAuthenticateRequest(auth_bytes=message)
    )
    assert isinstance(reply, SaslAuthenticateResponse)
    return reply


def log_in(
    line: Line,
    user: str = "alice",
    password: str = "pencil",
    mechanism: str = SCRAM,
    version: int = 2,
) -> SaslAuthenticateResponse:
    """A whole login by our client; returns the last reply."""
    assert handshake(line, mechanism).error_code == 0
    login = Login(mechanism=mechanism, username=user, password=Secret(password))
    exchange = sasl_exchange(login, b"a nonce of the client")
    message: bytes | None = exchange.first()
    while True:
        assert message is not None
        reply = say(line, message, version)
        if reply.error_code:
            return reply
        message = exchange.respond(bytes(reply.auth_bytes))
        if message is None:
            return reply
