# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""AlterUserScramCredentials (51): v0."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@struct
class ScramCredentialDeletion:
    name: str = field("string")
    mechanism: int = field("int8")


@struct
class ScramCredentialUpsertion:
    name: str = field("string")
    mechanism: int = field("int8")
    iterations: int = field("int32")
    salt: bytes = field("bytes")
    salted_password: bytes = field("bytes")


@message(versions="0-0", flexible="0+")
class AlterUserScramCredentialsRequest:
    deletions: list[ScramCredentialDeletion] = field("[]ScramCredentialDeletion")
    upsertions: list[ScramCredentialUpsertion] = field("[]ScramCredentialUpsertion")


@struct
class AlterUserScramCredentialsResult:
    user: str = field("string")
    error_code: int = field("int16")
    error_message: str | None = field("string", nullable="0+")


@message(versions="0-0", flexible="0+")
class AlterUserScramCredentialsResponse:
    throttle_time_ms: int = field("int32")
    results: list[AlterUserScramCredentialsResult] = field("[]AlterUserScramCredentialsResult")
