"""A start says which files with secrets every user of the machine can read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fencepost.broker.security.file_modes import warn_of_open_files
from fencepost.broker.settings.config import BrokerConfig

pytestmark = pytest.mark.skipif(os.name != "posix", reason="files have no modes here")

SASL = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0"}
JAAS = {
    **SASL,
    "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="pencil";'
    ),
}
ACLS = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}


@pytest.mark.parametrize(
    ("settings", "file_mode", "folder_mode", "named"),
    [
        (JAAS, 0o604, 0o750, ["server.properties"]),
        (JAAS, 0o640, 0o750, []),
        (JAAS, 0o604, 0o701, ["server.properties", "data"]),
        (SASL, 0o604, 0o755, ["data"]),
        (SASL, 0o604, 0o700, []),
        (ACLS, 0o604, 0o755, ["data"]),
        ({}, 0o604, 0o755, []),
    ],
)
def test_files_with_secrets_that_everybody_can_read_are_named_with_the_command_that_closes_them(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    settings: dict[str, str],
    file_mode: int,
    folder_mode: int,
    named: list[str],
) -> None:
    file, folder = tmp_path / "server.properties", tmp_path / "data"
    file.touch()
    folder.mkdir()
    file.chmod(file_mode)
    folder.chmod(folder_mode)
    warn_of_open_files(BrokerConfig({**settings, "log.dir": str(folder)}), str(file))
    assert [line.rpartition(": ")[2] for line in caplog.messages] == [
        f"chmod o= {tmp_path / name}" for name in named
    ]
    assert "pencil" not in caplog.text


def test_settings_without_a_file_need_none(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    warn_of_open_files(BrokerConfig({**JAAS, "log.dir": str(tmp_path)}), None)
