"""Files with secrets that every user of the machine can read: a warning at the start.

A private key is refused (`tls.py`). A properties file and a data directory are often protected by
the folder above them, which is not looked at, so they get a line in the log.
"""

from __future__ import annotations

import logging
import os
import stat
from typing import TYPE_CHECKING

from fencepost.broker.settings.config import is_sensitive

if TYPE_CHECKING:
    from fencepost.broker.settings.config import BrokerConfig

log = logging.getLogger(__name__)


def warn_of_open_files(config: BrokerConfig, settings_file: str | None) -> None:
    """Logs a line for each; the data directory exists. Does nothing where files have no modes."""
    if os.name != "posix":
        return
    has_secrets = any(is_sensitive(name) for name in config.static)
    if settings_file and has_secrets and os.stat(settings_file).st_mode & stat.S_IROTH:
        log.warning(
            "every user of this machine can read %s, which has passwords or keys: chmod o= %s",
            settings_file,
            settings_file,
        )
    has_users = any(each.protocol.startswith("SASL") for each in config.client_listeners)
    is_secured = has_users or config.authorizer_class_name
    if is_secured and os.stat(config.data).st_mode & stat.S_IXOTH:
        log.warning(
            "every user of this machine can open the data directory %s, which has records and the "
            "keys of users: chmod o= %s",
            config.data,
            config.data,
        )
