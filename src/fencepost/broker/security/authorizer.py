"""The authorizer: `coordinator.acl` decides, and this module remembers what it decided."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from fencepost.base.failures import ConfigError
from fencepost.broker.authorization import AllowAll, Authorizer
from fencepost.broker.settings.kinds import split_principals
from fencepost.coordinator.acl.decide import Policy, Question, decide, decide_by_type
from fencepost.coordinator.acl.rules import Operation, ResourceType

if TYPE_CHECKING:
    from fencepost.broker.settings.config import BrokerConfig
    from fencepost.coordinator.acl.state import AclState

log = logging.getLogger(__name__)

MAX_CACHED: Final = 50_000
"""Decisions that are kept, of about 300 bytes each. A full cache is dropped as a whole: a decision
takes some microseconds."""
LONGEST_CACHED: Final = 255
"""Longer names are decided each time. A topic's name has at most 249 characters."""

_ANY_NAME: Final = ""
"""Stands for all resources of a type in the cache; no resource has this name."""


class StandardAuthorizer:
    """Decides by the ACLs of the metadata log."""

    def __init__(self, acls: AclState, policy: Policy) -> None:
        self._acls: Final = acls
        self._policy: Final = policy
        self._cached: dict[tuple[str, str, str, str, str], bool] = {}
        self._cached_at = acls.version

    def authorize(
        self, principal: str, host: str, operation: str, resource_type: str, resource_name: str
    ) -> bool:
        """Whether the principal may perform the operation."""
        if self._cached_at != self._acls.version:
            self._forget()
        key = (principal, host, operation, resource_type, resource_name)
        known = self._cached.get(key)
        return self._decide(key) if known is None else known

    def _decide(self, key: tuple[str, str, str, str, str]) -> bool:
        principal, host, operation, resource_type, name = key
        question = Question(
            principal, host, Operation[operation], ResourceType[resource_type], name
        )
        allowed = decide(self._acls, self._policy, question).is_allowed
        if len(name) <= LONGEST_CACHED:
            self._keep(key, allowed)
        return allowed

    def authorize_by_type(
        self, principal: str, host: str, operation: str, resource_type: str
    ) -> bool:
        """Whether the principal may perform the operation on some resource of the type."""
        if self._cached_at != self._acls.version:
            self._forget()
        key = (principal, host, f"any {operation}", resource_type, _ANY_NAME)
        known = self._cached.get(key)
        if known is None:
            known = decide_by_type(
                self._acls,
                self._policy,
                principal,
                host,
                Operation[operation],
                ResourceType[resource_type],
            )
            self._keep(key, known)
        return known

    def _keep(self, key: tuple[str, str, str, str, str], allowed: bool) -> None:
        if len(self._cached) >= MAX_CACHED:
            self._cached = {}
        self._cached[key] = allowed

    def _forget(self) -> None:
        self._cached = {}
        self._cached_at = self._acls.version


def policy_of(config: BrokerConfig) -> Policy:
    """What the settings add to the ACLs."""
    return Policy(
        frozenset(split_principals(config.super_users)), config.allow_everyone_if_no_acl_found
    )


def make_authorizer(config: BrokerConfig, acls: AclState) -> Authorizer:
    """The authorizer of the settings."""
    if not config.authorizer_class_name:
        return AllowAll()
    return StandardAuthorizer(acls, policy_of(config))


def check_access(config: BrokerConfig, acls: AclState) -> None:
    """Refuses a start that would lock everybody out; warns if ACLs protect nothing."""
    if not config.authorizer_class_name:
        if acls.rules:
            log.warning(
                "authorizer.class.name is empty: the %d ACLs of %s are kept, but nothing checks "
                "them, and any client may do anything",
                len(acls.rules),
                config.data,
            )
        return
    policy = policy_of(config)
    if not (policy.super_users or policy.allow_without_rules or acls.rules):
        raise ConfigError(
            "With an authorizer, no super user and no ACL nobody could do anything, not even add "
            "an ACL. Name who may: --config super.users=User:admin (User:ANONYMOUS is every client "
            "of a listener without authentication)."
        )
