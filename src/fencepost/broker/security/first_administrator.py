"""`serve --init-admin`: the user that can create all others.

A new cluster has no users, and only a user may create one. So a start creates the first, before it
serves anybody, if there is no user of that name: an option that stays in a unit file changes
nothing later, not even a password that was changed since.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from fencepost.base.scram import MECHANISMS, SALT_BYTES, new_password
from fencepost.base.seams import Randomness
from fencepost.broker.controller.controller import Controller
from fencepost.client.secret import Secret
from fencepost.coordinator.metadata.users import Upsertion

log = logging.getLogger(__name__)


class Administrator(NamedTuple):
    """The name and the password of the first administrator."""

    user: str
    password: Secret


def create_first(
    controller: Controller, administrator: Administrator, randomness: Randomness
) -> None:
    """Creates the user with every mechanism, unless it exists."""
    user = administrator.user
    passwords = [
        new_password(each, administrator.password.reveal(), randomness.bytes(SALT_BYTES))
        for each in MECHANISMS.values()
    ]
    if controller.create_user_now([Upsertion(user, *each) for each in passwords]):
        log.info("created the user %s (--init-admin)", user)
    else:
        log.info("the user %s exists, so --init-admin changes nothing", user)
