# Made by tools/fold_schema.py from kio's schema: change the tool, not this file.
"""DescribeUserScramCredentials (50): v0."""

from __future__ import annotations

from fencepost.wire.schema import field, message, struct


@struct
class UserName:
    name: str = field("string")


@message(versions="0-0", flexible="0+")
class DescribeUserScramCredentialsRequest:
    users: list[UserName] | None = field("[]UserName", nullable="0+")


@struct
class CredentialInfo:
    mechanism: int = field("int8")
    iterations: int = field("int32")


@struct
class DescribeUserScramCredentialsResult:
    user: str = field("string")
    error_code: int = field("int16")
    error_message: str | None = field("string", nullable="0+")
    credential_infos: list[CredentialInfo] = field("[]CredentialInfo")


@message(versions="0-0", flexible="0+")
class DescribeUserScramCredentialsResponse:
    throttle_time_ms: int = field("int32")
    error_code: int = field("int16")
    error_message: str | None = field("string", nullable="0+")
    results: list[DescribeUserScramCredentialsResult] = field(
        "[]DescribeUserScramCredentialsResult"
    )
