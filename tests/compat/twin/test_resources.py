"""ACLs, quotas, the quorum, config resources and loggers: the same replies.

Method: twin runs (see the package's docstring) against an Apache Kafka without an authorizer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from fencepost.wire.forms.create_acls import AclCreation, CreateAclsRequest
from fencepost.wire.forms.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from fencepost.wire.forms.describe_acls import DescribeAclsRequest
from fencepost.wire.forms.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from fencepost.wire.forms.describe_quorum import DescribeQuorumRequest, PartitionData, TopicData
from fencepost.wire.forms.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from fencepost.wire.forms.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from fencepost.wire.forms.list_config_resources import ListConfigResourcesRequest
from tests.compat.twin.administered import (
    APPEND,
    BROKER,
    DELETE,
    SET,
    SUBTRACT,
    TOPIC,
    alter,
    replace,
    settings_of,
)
from tests.compat.twin.talk import Ask, versions

if TYPE_CHECKING:
    from tests.compat.twin.talk import Talk, Twins

LOGGER, CLIENT_METRICS, GROUP = 8, 16, 32
METADATA = "__cluster_metadata"
UNKNOWN_PART = "a request about ACLs with an UNKNOWN (0) part"


# -- ACLs
# -------------------------------------------------------------------------------------------------


def creation(**changed: Any) -> AclCreation:
    plain: dict[str, Any] = {
        "resource_type": TOPIC,
        "resource_name": "t",
        "resource_pattern_type": 3,
        "principal": "User:a",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    return AclCreation(**(plain | changed))


def acl_filter(form: type[Any], **changed: Any) -> Any:
    plain = {
        "resource_type_filter": 1,
        "pattern_type_filter": 1,
        "operation": 1,
        "permission_type": 1,
        "resource_name_filter": None,
        "principal_filter": None,
        "host_filter": None,
    }
    return form(**(plain | changed))


def test_acls_are_refused_without_an_authorizer(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        for version in versions(ApiKey.DESCRIBE_ACLS):
            for changed in ({}, {"resource_type_filter": 99}, {"pattern_type_filter": 2}):
                ask = Ask(ApiKey.DESCRIBE_ACLS, acl_filter(DescribeAclsRequest, **changed))
                talk.ask(f"described {changed}, v{version}", ask, version)
        for version in versions(ApiKey.CREATE_ACLS):
            odd = [creation(principal="x"), creation(resource_name=""), creation(operation=1)]
            request = CreateAclsRequest(creations=[creation(), *odd])
            talk.ask(f"created, v{version}", Ask(ApiKey.CREATE_ACLS, request), version)
        for version in versions(ApiKey.DELETE_ACLS):
            filters = [acl_filter(DeleteAclsFilter), acl_filter(DeleteAclsFilter, operation=99)]
            ask = Ask(ApiKey.DELETE_ACLS, DeleteAclsRequest(filters=filters))
            talk.ask(f"deleted, v{version}", ask, version)
        talk.ask("none created", Ask(ApiKey.CREATE_ACLS, CreateAclsRequest(creations=[])))
        talk.ask("none deleted", Ask(ApiKey.DELETE_ACLS, DeleteAclsRequest(filters=[])))

    twins.compare(script)


def test_acls_with_an_unknown_part(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        unknown = acl_filter(DescribeAclsRequest, operation=0)
        talk.ask("described", Ask(ApiKey.DESCRIBE_ACLS, unknown), differs=UNKNOWN_PART)
        request = CreateAclsRequest(creations=[creation(resource_type=0)])
        talk.ask("created", Ask(ApiKey.CREATE_ACLS, request), differs=UNKNOWN_PART)
        filters = [acl_filter(DeleteAclsFilter, pattern_type_filter=0)]
        ask = Ask(ApiKey.DELETE_ACLS, DeleteAclsRequest(filters=filters))
        talk.ask("deleted", ask, differs=UNKNOWN_PART)

    twins.compare(script)


# -- quotas and credentials
# -----------------------------------------------------------------------------------

EXACT, DEFAULT, SPECIFIED = range(3)
FILTERS: list[list[tuple[str, int, str | None]]] = [
    [],
    [("user", EXACT, "a")],
    [("user", DEFAULT, None)],
    [("user", SPECIFIED, None)],
    [("client-id", EXACT, "a"), ("user", SPECIFIED, None)],
    [("ip", EXACT, "127.0.0.1")],
]
"""Those of Kafka's tools; a filter that Kafka refuses finds no quotas here, either."""


def test_there_are_no_quotas(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        for version in versions(ApiKey.DESCRIBE_CLIENT_QUOTAS):
            for number, components in enumerate(FILTERS):
                for strict in (False, True):
                    request = DescribeClientQuotasRequest(
                        components=[
                            ComponentData(entity_type=entity, match_type=kind, match=match)
                            for entity, kind, match in components
                        ],
                        strict=strict,
                    )
                    ask = Ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, request)
                    talk.ask(f"{number} {components} {strict}, v{version}", ask, version)

    twins.compare(script)


def test_no_user_has_scram_credentials(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        for users in (None, [], ["a"], ["a", "a"], ["a", "b"], [""]):
            named = None if users is None else [UserName(name=user) for user in users]
            request = DescribeUserScramCredentialsRequest(users=named)
            talk.ask(f"{users}", Ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, request))

    twins.compare(script)


def test_users_are_set_described_and_removed_alike(twins: Twins) -> None:
    def upsertion(
        name: str, mechanism: int = 1, iterations: int = 4096
    ) -> ScramCredentialUpsertion:
        return ScramCredentialUpsertion(
            name=name,
            mechanism=mechanism,
            iterations=iterations,
            salt=b"a salt",
            salted_password=bytes(64 if mechanism == 2 else 32),
        )

    def removal(name: str, mechanism: int = 1) -> ScramCredentialDeletion:
        return ScramCredentialDeletion(name=name, mechanism=mechanism)

    steps: list[tuple[list[ScramCredentialUpsertion], list[ScramCredentialDeletion]]] = [
        ([upsertion("alice"), upsertion("bob", 2, 16_384)], []),
        ([upsertion("alice", 2), upsertion("carol", iterations=4095)], []),
        ([upsertion("carol", iterations=16_385)], [removal("carol")]),
        ([upsertion("alice", 3)], [removal("bob", 0)]),
        ([upsertion("")], []),
        ([], [removal("")]),
        ([upsertion("bob", 2, 8192), upsertion("bob", 2)], []),
        ([upsertion("bob", 2)], [removal("bob", 2)]),
        ([], [removal("alice"), removal("alice")]),
        ([upsertion("dave")], [removal("alice", 1), removal("carol", 1)]),
        ([], [removal("alice", 2), removal("bob", 2), removal("dave")]),
        ([], []),
    ]

    def alter(
        upsertions: list[ScramCredentialUpsertion], deletions: list[ScramCredentialDeletion]
    ) -> Ask:
        request = AlterUserScramCredentialsRequest(upsertions=upsertions, deletions=deletions)
        return Ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, request)

    describe = Ask(
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, DescribeUserScramCredentialsRequest(users=None)
    )

    def await_change(talk: Talk, iterations: int) -> None:
        """Apache Kafka's controller answers before the broker knows: a later change tells."""
        talk.quiet(alter([upsertion("last", iterations=iterations)], []))
        talk.until(
            describe,
            lambda reply: any(
                user.user == "last" and user.credential_infos[0].iterations == iterations
                for user in reply.results
            ),
        )

    def script(talk: Talk) -> None:
        for number, (upsertions, deletions) in enumerate(steps):
            talk.ask(f"alter {number}", alter(upsertions, deletions), see=by_user)
            await_change(talk, 5_000 + number)
            talk.ask(f"describe {number}", describe, see=by_user)
        talk.quiet(alter([], [removal("last")]))

    twins.compare(script)


def by_user(reply: Any) -> Any:
    """In the order of names, and without the wording of errors."""
    reply.results.sort(key=lambda result: result.user)
    for result in reply.results:
        result.error_message = None
    return reply


# -- the quorum
# -----------------------------------------------------------------------------------------------


def quorum_of(*topics: tuple[str, list[int]]) -> Ask:
    asked = [
        TopicData(topic_name=name, partitions=[PartitionData(partition_index=i) for i in indexes])
        for name, indexes in topics
    ]
    return Ask(ApiKey.DESCRIBE_QUORUM, DescribeQuorumRequest(topics=asked))


def without_own_numbers(reply: Any) -> Any:
    """Without log offsets and epochs, and the listener of Kafka's controller."""
    for partition in (each for topic in reply.topics for each in topic.partitions):
        if partition.error_code == 0:
            ends = {replica.log_end_offset for replica in partition.current_voters}
            assert ends == {partition.high_watermark}
        partition.leader_epoch = partition.high_watermark = 0
        for replica in partition.current_voters:
            replica.log_end_offset = 0
    for node in reply.nodes:
        node.listeners = ["one"] * len(node.listeners)
    return reply


def test_the_quorum_is_one_voter_that_is_up_to_date(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        asks = {
            "the metadata": quorum_of((METADATA, [0])),
            "another topic": quorum_of(("x", [0])),
            "another topic beside it": quorum_of(("x", [0]), (METADATA, [0])),
            "another partition": quorum_of((METADATA, [1])),
            "another partition beside it": quorum_of((METADATA, [0, 1])),
            "nothing": quorum_of(),
            "no partition": quorum_of((METADATA, [])),
            "the topic twice": quorum_of((METADATA, [0]), (METADATA, [0])),
            "the partition twice": quorum_of((METADATA, [0, 0])),
        }
        for version in versions(ApiKey.DESCRIBE_QUORUM):
            for name, ask in asks.items():
                talk.ask(f"{name}, v{version}", ask, version, see=without_own_numbers)

    twins.compare(script)


# -- config resources
# ----------------------------------------------------------------------------------------


def test_config_resources_are_listed(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        talk.topic("r-a")

        def of_this_script(reply: Any) -> Any:
            reply.config_resources = [
                each
                for each in reply.config_resources
                if each.resource_name.startswith(("r-", "1"))
            ]
            return reply

        def listed(*types: int) -> Ask:
            request = ListConfigResourcesRequest(resource_types=list(types))
            return Ask(ApiKey.LIST_CONFIG_RESOURCES, request)

        talk.ask("v0", listed(), 0, see=of_this_script)
        lists: tuple[list[int], ...] = ([], [TOPIC], [BROKER], [LOGGER], [CLIENT_METRICS])
        for types in (*lists, [GROUP], [TOPIC, GROUP], [GROUP, GROUP]):
            talk.ask(f"{types}", listed(*types), see=of_this_script)
        for types in ([0], [1], [99], [-1], [TOPIC, 99]):
            talk.ask(f"{types}", listed(*types))

    twins.compare(script)


# -- loggers
# --------------------------------------------------------------------------------------------------


def test_logger_levels(twins: Twins) -> None:
    """Each side has its own loggers; both have a root."""

    def script(talk: Talk) -> None:
        def show(step: str, name: str = "1") -> None:
            talk.ask(step, settings_of(LOGGER, name, ["root", "nonsense"]))

        def change(step: str, *changes: tuple[str, int, str | None], **more: Any) -> None:
            talk.ask(step, alter(LOGGER, "1", *changes, **more))

        for name in ("2", "", "x"):
            show(f"of {name!r}", name)
            talk.ask(f"{name!r} set", alter(LOGGER, name, ("root", SET, "INFO")))
        for level in ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"):
            change(level, ("root", SET, level))
            show(f"{level} shown")
        for level in ("info", "OFF", "ALL", "WARNING", "", " INFO"):
            change(f"no level {level!r}", ("root", SET, level))
        change("a level is missing", ("root", SET, None))
        change("without a level", ("root", DELETE, None))
        change("an unknown logger", ("nonsense", SET, "INFO"))
        change("an unknown logger, no level", ("nonsense", SET, "LOUD"))
        change("an unknown logger without a level", ("nonsense", DELETE, None))
        for name in ("root", "nonsense"):
            change(f"append to {name}", (name, APPEND, "INFO"))
            change(f"subtract from {name}", (name, SUBTRACT, "INFO"))
        change("one twice", ("root", SET, "INFO"), ("root", SET, "INFO"))
        change("one of two", ("root", SET, "INFO"), ("nonsense", SET, "INFO"))
        show("nothing has changed")
        change("only looking", ("root", SET, "DEBUG"), validate_only=True)
        change("nothing")
        show("and still has not")
        for version in versions(ApiKey.ALTER_CONFIGS):
            talk.ask(f"replaced, v{version}", replace(LOGGER, "1", {"root": "INFO"}), version)
        for version in versions(ApiKey.DESCRIBE_CONFIGS):
            ask = settings_of(LOGGER, "1", ["root"], synonyms=True)
            talk.ask(f"described, v{version}", ask, version)
        change("back", ("root", SET, "ERROR"))

    twins.compare(script)


def test_resources_of_several_types_in_one_request(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        def several(*resources: tuple[int, str, list[tuple[str, str]]]) -> Ask:
            named = [
                AlterConfigsResource(
                    resource_type=kind,
                    resource_name=name,
                    configs=[
                        AlterableConfig(name=key, config_operation=SET, value=value)
                        for key, value in settings
                    ],
                )
                for kind, name, settings in resources
            ]
            request = IncrementalAlterConfigsRequest(resources=named, validate_only=True)
            return Ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, request)

        level = (LOGGER, "1", [("root", "ERROR")])
        topic = (TOPIC, "r-several", [("retention.ms", "50000")])
        nobody = (TOPIC, "r-nobody", [("retention.ms", "50000")])
        talk.topic("r-several")
        talk.ask("good and bad", several(level, topic, nobody, (99, "x", [])))
        talk.ask("one twice", several(level, topic, level, nobody, nobody))

    twins.compare(script)
