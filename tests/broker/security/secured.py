"""A stage with an authorizer, clients as several principals, and rights given over the wire."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fencepost.base.errors import ErrorCode
from fencepost.base.scram import NewPassword
from fencepost.coordinator.acl.rules import Operation, ResourceType
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from fencepost.wire.forms.create_acls import AclCreation, CreateAclsRequest
from fencepost.wire.forms.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from tests.broker.node_stage import Line, Stage
from tests.broker.requests import create_topic
from tests.broker.security.matrix import WORLD, Right, World
from tests.transactions.protocol import TV1
from tests.transactions.wire import GROUP, WireProducer, await_coordinator

SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin",
}
ALICE = "User:alice"


class Secured(Stage):
    """A stage whose own connection is the super user's."""

    def __init__(self, **more: Any) -> None:
        settings = {**SETTINGS, **more.pop("settings", {})}
        super().__init__(settings=settings, **{"durability": "os", **more})

    def again(self, **changes: Any) -> Secured:
        given: dict[str, Any] = {
            "durability": self._given["durability"],
            "settings": self._given,
            "disk": self.disk,
            "randomness": self.randomness,
            "now_ms": self.clock.now_ms() + 1,
        }
        return Secured(**{**given, **changes}).start()

    def connect(self, principal: str = "User:admin", host: str = "127.0.0.1") -> Line:
        line = super().connect()
        line.connection.principal = principal
        line.connection.client_host = host
        return line

    def rules(self) -> set[str]:
        """The ACLs in words."""
        return {str(rule) for rule in self.node.metadata.acls.rules.values()}

    def change(self, *creations: AclCreation) -> list[ErrorCode]:
        reply = self.call(ApiKey.CREATE_ACLS, 3, CreateAclsRequest(creations=list(creations)))
        return [ErrorCode(each.error_code) for each in reply.results]

    def allow(self, *rights: Right, principal: str = ALICE) -> None:
        self._give(rights, principal, 3)

    def deny(self, *rights: Right, principal: str = ALICE) -> None:
        self._give(rights, principal, 2)

    def _give(self, rights: Iterable[Right], principal: str, permission: int) -> None:
        errors = self.change(*(acl(right, principal, permission) for right in rights))
        assert set(errors) <= {ErrorCode.NONE}

    def forget(self) -> None:
        """Removes all ACLs."""
        everything = DeleteAclsFilter(
            resource_type_filter=1,
            resource_name_filter=None,
            pattern_type_filter=1,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=1,
        )
        request = DeleteAclsRequest(filters=[everything])
        assert self.call(ApiKey.DELETE_ACLS, 3, request).filter_results[0].error_code == 0

    def settle_world(self) -> World:
        """A topic, a group with an offset, and an open transaction, all of the super user's."""
        create_topic(self, WORLD.topic)
        await_coordinator(self, WORLD.group, GROUP)
        one = WireProducer(self, WORLD.transactional_id, TV1).initialise()
        one.send(WORLD.topic, b"v")
        topic_id = self.node.metadata.topic_id(WORLD.topic)
        assert topic_id is not None
        return World(producer_id=one.producer_id, producer_epoch=one.epoch, topic_id=topic_id)


def acl(right: Right, principal: str = ALICE, permission: int = 3, **more: Any) -> AclCreation:
    operation, resource_type, name = right
    return AclCreation(
        resource_type=ResourceType[resource_type],
        resource_name=name,
        principal=principal,
        host="*",
        operation=Operation[operation],
        permission_type=permission,
        **more,
    )


def new_user(name: str, passwords: Iterable[NewPassword]) -> AlterUserScramCredentialsRequest:
    """Adds a user, or changes the password."""
    return AlterUserScramCredentialsRequest(
        upsertions=[
            ScramCredentialUpsertion(
                name=name,
                mechanism=each.mechanism,
                iterations=each.iterations,
                salt=each.salt,
                salted_password=each.salted_password,
            )
            for each in passwords
        ]
    )
