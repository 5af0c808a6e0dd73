"""Users and their SCRAM credentials, as the brokers of a cluster keep them.

The password never leaves this process: it is salted and hashed here, and the brokers get the
result. Whoever has that can log in, so it is as secret as the password.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fencepost.base.errors import ErrorCode
from fencepost.base.scram import BY_NUMBER, NewPassword
from fencepost.client.calls import AnyBroker, Core, call_one, error_code, only
from fencepost.client.steps import Steps
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from fencepost.wire.forms.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
)


@dataclass(frozen=True, slots=True)
class UserView:
    """A user and the iterations of each of its mechanisms."""

    user: str
    iterations: dict[str, int]


def set_password(core: Core, user: str, passwords: Iterable[NewPassword]) -> Steps[None]:
    """Creates a user, or changes the password; all mechanisms or none."""
    request = AlterUserScramCredentialsRequest(
        upsertions=[
            ScramCredentialUpsertion(
                name=user,
                mechanism=each.mechanism,
                iterations=each.iterations,
                salt=each.salt,
                salted_password=each.salted_password,
            )
            for each in passwords
        ]
    )
    yield from _alter(core, user, request)


def remove_user(core: Core, user: str, mechanisms: Sequence[int]) -> Steps[None]:
    """Removes the credentials of a user."""
    request = AlterUserScramCredentialsRequest(
        deletions=[
            ScramCredentialDeletion(name=user, mechanism=mechanism) for mechanism in mechanisms
        ]
    )
    yield from _alter(core, user, request)


def _alter(core: Core, user: str, request: AlterUserScramCredentialsRequest) -> Steps[None]:
    yield from call_one(
        core,
        AnyBroker(),
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        request,
        only("results"),
        about=f"user {user!r}",
    )


def describe_users(core: Core) -> Steps[list[UserView]]:
    """Returns all users, by name."""
    reply = yield from call_one(
        core,
        AnyBroker(),
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        DescribeUserScramCredentialsRequest(users=None),
        error_code,
    )
    return sorted(
        (
            UserView(
                result.user,
                {
                    _name_of(info.mechanism): info.iterations
                    for info in sorted(result.credential_infos, key=lambda each: each.mechanism)
                },
            )
            for result in reply.form.results
            if result.error_code == ErrorCode.NONE
        ),
        key=lambda view: view.user,
    )


def _name_of(mechanism: int) -> str:
    known = BY_NUMBER.get(mechanism)
    return f"mechanism {mechanism}" if known is None else known.name
