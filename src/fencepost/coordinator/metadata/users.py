"""Decides changes of users: what the cluster knows of their passwords, one entry per mechanism.

A request is one batch of the log. Each user has an outcome; a user with a mistake keeps all
credentials, and the other users are changed. Order and errors are those of Kafka's
ScramControlManager.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from fencepost.base.errors import ErrorCode
from fencepost.base.refusal import Refusal
from fencepost.base.scram import (
    BY_NUMBER,
    LEAST_ITERATIONS,
    MOST_ITERATIONS,
    Credential,
    credential_of,
)
from fencepost.coordinator.metadata.events import Decision
from fencepost.coordinator.metadata.state import MetadataState
from fencepost.records.metadata_log import (
    MetadataRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)

MAX_CHANGES: Final = 10_000
"""Credentials that one request may change: they are one batch, and each costs some hashes. Kafka's
controller has the same limit."""


class Removal(NamedTuple):
    """Remove a user's credential for a mechanism."""

    user: str
    mechanism: int


class Upsertion(NamedTuple):
    """Set or replace a user's credential for a mechanism."""

    user: str
    mechanism: int
    salt: bytes
    salted_password: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"Upsertion({self.user!r}, {self.mechanism})"


UserChange = Removal | Upsertion


class UserOutcome(NamedTuple):
    """The result for one user; None if everything was changed."""

    user: str
    refusal: Refusal | None = None


_TWICE: Final = Refusal(
    ErrorCode.DUPLICATE_RESOURCE,
    "A user credential cannot be altered twice in the same request",
)


def credential_record(
    name: str, mechanism: int, credential: Credential
) -> UserScramCredentialRecord:
    """The record that sets a credential."""
    return UserScramCredentialRecord(
        name=name,
        mechanism=mechanism,
        salt=credential.salt,
        stored_key=credential.stored_key,
        server_key=credential.server_key,
        iterations=credential.iterations,
    )


def decide_alter_users(
    state: MetadataState, changes: Sequence[UserChange]
) -> tuple[Decision, list[UserOutcome]]:
    """Change the credentials of users, or refuse; one outcome per user, in order."""
    if len(changes) > MAX_CHANGES:
        users = dict.fromkeys(change.user for change in changes)
        return Decision(()), [UserOutcome(user, _too_many(len(changes))) for user in users]
    refused: dict[str, Refusal | None] = {}
    seen: set[tuple[str, int]] = set()
    for change in changes:
        key = (change.user, change.mechanism)
        refusal = _refuse(state, change) or (_TWICE if key in seen else None)
        seen.add(key)
        refused[change.user] = refused.get(change.user) or refusal
    accepted = [change for change in changes if refused[change.user] is None]
    outcomes = [UserOutcome(user, refusal) for user, refusal in refused.items()]
    return Decision(tuple(_records(accepted))), outcomes


def _too_many(count: int) -> Refusal:
    return Refusal(
        ErrorCode.POLICY_VIOLATION,
        f"The request changes {count:,} credentials; one request may change {MAX_CHANGES:,}.",
    )


def _refuse(state: MetadataState, change: UserChange) -> Refusal | None:
    mechanism = BY_NUMBER.get(change.mechanism)
    if mechanism is None:
        return Refusal(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if not change.user:
        return Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if isinstance(change, Removal):
        if change.mechanism not in state.users.get(change.user, ()):
            return Refusal(
                ErrorCode.RESOURCE_NOT_FOUND,
                "Attempt to delete a user credential that does not exist",
            )
        return None
    if change.iterations < LEAST_ITERATIONS:
        return Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if change.iterations > MOST_ITERATIONS:
        return Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    # Kafka checks neither: such a user could never log in.
    if not change.salt:
        return Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "The salt must not be empty")
    if len(change.salted_password) != mechanism.hash_bytes:
        return Refusal(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"The salted password of {mechanism.name} has {mechanism.hash_bytes} bytes",
        )
    return None


def _records(changes: Iterable[UserChange]) -> Iterable[MetadataRecord]:
    for change in changes:
        if isinstance(change, Removal):
            yield RemoveUserScramCredentialRecord(name=change.user, mechanism=change.mechanism)
        else:
            credential = credential_of(
                BY_NUMBER[change.mechanism],
                change.salted_password,
                change.salt,
                change.iterations,
            )
            yield credential_record(change.user, change.mechanism, credential)
