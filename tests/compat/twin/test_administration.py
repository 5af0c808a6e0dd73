"""Goal: topics, settings, metadata and other admin requests behave as on Apache Kafka.

Method: twin runs (see the package's docstring). The node id is 1 on both sides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fencepost.broker.settings.config import BROKER_SETTINGS, TOPIC_SETTINGS
from fencepost.wire.apis import API, ApiKey
from fencepost.wire.forms.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from fencepost.wire.forms.api_versions import ApiVersionsRequest
from fencepost.wire.forms.describe_cluster import DescribeClusterRequest
from fencepost.wire.forms.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from fencepost.wire.forms.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from fencepost.wire.forms.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    ReplicaElectionResult,
    TopicPartitions,
)
from fencepost.wire.forms.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from tests.broker.raw import frame_as_written
from tests.broker.settings.test_config import OWN
from tests.compat.twin.administered import (
    APPEND,
    BROKER,
    DELETE,
    SET,
    SUBTRACT,
    TOPIC,
    UNKNOWN_ID,
    alter,
    create,
    delete,
    grow,
    metadata,
    new_topic,
    replace,
    settings_of,
)
from tests.compat.twin.talk import Ask, newest_version, versions
from tests.compat.twin.transactional import batch, produce

if TYPE_CHECKING:
    from tests.compat.twin.talk import Talk, Twins


ODD_REQUESTS = (
    "a bad operation in IncrementalAlterConfigs, an empty name in DescribeTopicPartitions"
)


# -- creating and deleting
# ------------------------------------------------------------------------------------


def creations() -> dict[str, Any]:
    def one(*arguments: Any, **more: Any) -> Ask:
        return create(new_topic(*arguments, **more))

    def with_settings(**settings: str | None) -> dict[str, str | None]:
        return {name.replace("__", "."): value for name, value in settings.items()}

    plain: dict[str, Ask] = {
        "three partitions": one("c-a", 3),
        "the same again": one("c-a", 3),
        "by default": one("c-b", -1, -1),
        "no partitions": one("c-none", 0),
        "less than none": one("c-none", -2),
        "no copies": one("c-none", 1, 0),
        "three copies": one("c-none", 1, 3),
        "less than no copies": one("c-none", 1, -2),
        "a space": one("c a"),
        "no name": one(""),
        "one dot": one("."),
        "two dots": one(".."),
        "249 letters": one("c" * 249),
        "250 letters": one("c" * 250),
        "a dot": one("c.x"),
        "an underscore for the dot": one("c_x"),
        "twice in one request": create(new_topic("c-c"), new_topic("c-c", 2), new_topic("c-d")),
        "only looking": create(new_topic("c-look", 4), validate_only=True),
        "only looking at nonsense": create(new_topic("c-look", 0), validate_only=True),
        "only looking at one that exists": create(new_topic("c-a"), validate_only=True),
        "nothing": create(),
        "an internal one": one("__consumer_offsets", 3),
        "the metadata": one("__cluster_metadata"),
        "assigned": one("c-e", -1, -1, assignments=[(0, [1]), (1, [1])]),
        "assigned and counted": one("c-none", 2, -1, assignments=[(0, [1]), (1, [1])]),
        "assigned and copied": one("c-none", -1, 1, assignments=[(0, [1])]),
        "assigned to no broker": one("c-none", -1, -1, assignments=[(0, [])]),
        "assigned to an unknown broker": one("c-none", -1, -1, assignments=[(0, [2])]),
        "assigned twice to one": one("c-none", -1, -1, assignments=[(0, [1, 1])]),
        "assigned with a gap": one("c-none", -1, -1, assignments=[(0, [1]), (2, [1])]),
        "assigned one twice": one("c-none", -1, -1, assignments=[(0, [1]), (0, [1])]),
        "assigned below 0": one("c-none", -1, -1, assignments=[(-1, [1])]),
    }
    settings: dict[str, dict[str, str | None]] = {
        "good": with_settings(retention__ms="1000", cleanup__policy="compact,delete"),
        "unknown": with_settings(nonsense="1"),
        "no number": with_settings(retention__ms="abc"),
        "out of range": with_settings(retention__ms="-2"),
        "null": with_settings(retention__ms=None),
        "too small": with_settings(segment__bytes="1000"),
        "hexadecimal": with_settings(segment__bytes="0x100000"),
        "with spaces": with_settings(segment__bytes=" 2000000 "),
        "with a plus": with_settings(segment__bytes="+2000000"),
        "with a point": with_settings(segment__bytes="2000000.0"),
        "too large for an int": with_settings(segment__bytes="3000000000"),
        "too large for a long": with_settings(retention__ms="99999999999999999999"),
        "an unknown policy": with_settings(cleanup__policy="never"),
        "no policy": with_settings(cleanup__policy=""),
        "policies with spaces": with_settings(cleanup__policy=" compact , delete "),
        "one policy twice": with_settings(cleanup__policy="compact,compact"),
        "TRUE": with_settings(preallocate="TRUE"),
        "yes": with_settings(preallocate="yes"),
        "1e-1": with_settings(min__cleanable__dirty__ratio="1e-1"),
        "a ratio of 2": with_settings(min__cleanable__dirty__ratio="2"),
        "lags crossed": with_settings(
            min__compaction__lag__ms="100", max__compaction__lag__ms="10"
        ),
        "Gzip": with_settings(compression__type="Gzip"),
        "none": with_settings(compression__type="none"),
        "a level": with_settings(compression__gzip__level="10"),
        "remote": with_settings(remote__storage__enable="true"),
        "min isr 0": with_settings(min__insync__replicas="0"),
        "min isr 2": with_settings(min__insync__replicas="2"),
    }
    plain |= {
        f"settings: {name}": one(f"c-s{number}", settings=given)
        for number, (name, given) in enumerate(settings.items())
    }
    return plain


def without_settings(reply: Any) -> Any:
    """What was created, without the list of all its settings."""
    for topic in reply.topics:
        topic.configs = None if topic.configs is None else []
    return reply


def test_topics_are_created(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        for name, ask in creations().items():
            talk.ask(name, ask, see=without_settings)
        for version in versions(ApiKey.CREATE_TOPICS):
            for name in ("c-a", f"c-v{version}", "c a"):
                ask = create(new_topic(name, -1 if version > 3 else 1, -1 if version > 3 else 1))
                talk.ask(f"{name}, v{version}", ask, version, see=without_settings)
        both = create(new_topic("c.z"), new_topic("c_z"))
        row = "two new topics in one request whose names differ only in `.` and `_`"
        talk.ask("a dot and an underscore at once", both, see=without_settings, differs=row)

    twins.compare(script)


def test_topics_are_deleted(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        ids = {name: talk.topic(name) for name in ("d-a", "d-b", "d-c", "d-d", "d-e", "d-f", "d-g")}
        talk.ask("known and unknown names and ids", delete("d-a", "d-none", ids["d-b"], UNKNOWN_ID))
        talk.ask("one twice", delete("d-c", "d-c"))
        talk.ask("by name and id", delete(("d-c", ids["d-c"])))
        talk.ask("by neither", delete(None))
        talk.ask("once by name, once by id", delete("d-d", ids["d-d"]))
        talk.ask("an illegal name", delete("a b", ""))
        talk.ask("nothing", delete())
        for version in versions(ApiKey.DELETE_TOPICS):
            gone = ("d-a", "d-e") if version == 1 else ("d-a",)
            talk.ask(f"again, v{version}", delete(*gone), version)
        talk.ask("deleted again", delete(ids["d-e"]))

    twins.compare(script)


def test_internal_topics_cannot_be_deleted(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        talk.topic("t-internal")
        row = "CreatePartitions for an internal topic"
        ask = grow(("__consumer_offsets", 60), validate_only=True)
        talk.ask("more partitions", ask, differs=row)

    twins.compare(script)


def test_partitions_are_added_to_topics(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        talk.topic("g-a", 3)
        talk.topic("g-b", 1)
        for version in versions(ApiKey.CREATE_PARTITIONS):
            v = f"v{version}"
            talk.ask(f"{v}: more", grow(("g-a", 4 + version)), version)
            talk.ask(f"{v}: as many", grow(("g-a", 4 + version)), version)
            talk.ask(f"{v}: fewer", grow(("g-a", 2)), version)
            talk.ask(f"{v}: none", grow(("g-a", 0)), version)
            talk.ask(f"{v}: less than none", grow(("g-a", -1)), version)
            talk.ask(f"{v}: unknown", grow(("g-none", 5)), version)
            talk.ask(f"{v}: only looking", grow(("g-b", 9), validate_only=True), version)
        talk.ask("one twice", grow(("g-b", 2), ("g-b", 3)))
        talk.ask("assigned", grow(("g-b", 3), assignments=[[1], [1]]))
        talk.ask("assigned too many", grow(("g-b", 4), assignments=[[1], [1]]))
        talk.ask("assigned to an unknown broker", grow(("g-b", 4), assignments=[[2]]))
        talk.ask("assigned to no broker", grow(("g-b", 4), assignments=[[]]))
        talk.ask("assigned to two", grow(("g-b", 4), assignments=[[1, 2]]))
        talk.ask("nothing", grow())

    twins.compare(script)


# -- metadata
# -------------------------------------------------------------------------------------------------


def only(*names: str) -> Any:
    """The topics of this script among those of a reply."""

    def see(reply: Any) -> Any:
        reply.topics = [topic for topic in reply.topics if topic.name in names]
        return reply

    return see


def test_metadata_in_every_version(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        topic_id = talk.topic("md", 3)
        for version in versions(ApiKey.METADATA):
            v = f"v{version}"
            talk.ask(f"{v}: everything", metadata(everything=True), version, see=only("md"))
            talk.ask(f"{v}: one", metadata("md"), version)
            talk.ask(f"{v}: one twice", metadata("md", "md"), version)
            if version >= 1:
                talk.ask(f"{v}: nothing", metadata(), version)
            if version >= 4:
                talk.ask(f"{v}: unknown", metadata("md-none", "md", "a b", ".."), version)
            if version >= 8:
                more = {"include_topic_authorized_operations": True}
                if version <= 10:
                    more["include_cluster_authorized_operations"] = True
                talk.ask(f"{v}: operations", metadata("md", "md-none", **more), version)
            if version >= 10:
                named = metadata(("md", topic_id), ("md", UNKNOWN_ID))
                talk.ask(f"{v}: by name and id", named, version)
            if version >= 12:
                talk.ask(f"{v}: by id", metadata(topic_id, UNKNOWN_ID), version)
                talk.ask(f"{v}: by id and by name", metadata(topic_id, "md"), version)
                row = "Metadata of a topic with neither name nor id"
                neither = metadata((None, bytes(16)))
                talk.ask(f"{v}: by neither", neither, version, differs=row)
                other = metadata(topic_id, "md-other", UNKNOWN_ID, create_missing=True)
                talk.ask(f"{v}: a name beside ids", other, version)
            internal = metadata("__consumer_offsets")
            talk.ask(f"{v}: internal", internal, version, see=lambda r: r.topics[0].is_internal)

    twins.compare(script)


def test_metadata_creates_a_missing_topic(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        ask = metadata("born", create_missing=True)
        talk.ask("the first time", ask, differs="Metadata with auto-creation")
        talk.await_topic("born")
        talk.ask("the second time", ask)
        talk.ask("illegal names", metadata("a b", "..", "", "x" * 250, create_missing=True))
        talk.ask("unknown by id", metadata(UNKNOWN_ID, create_missing=True))

    twins.compare(script)


def test_partitions_are_described_page_by_page(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        for name in ("p-x", "p-y", "p-z"):
            talk.topic(name, 3)

        def page(
            step: str,
            topics: str,
            limit: int,
            cursor: tuple[str, int] | None = None,
            differs: str | None = None,
        ) -> None:
            request = DescribeTopicPartitionsRequest(
                topics=[TopicRequest(name=name) for name in topics.split(" ")],
                response_partition_limit=limit,
                cursor=cursor and Cursor(topic_name=cursor[0], partition_index=cursor[1]),
            )
            talk.ask(step, Ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, request), differs=differs)

        page("all", "p-z p-x p-y p-none p-x", 4)
        page("from a cursor", "p-z p-x p-y p-none", 4, ("p-y", 1))
        page("from a topic that was not asked for", "p-z p-x", 4, ("p-y", 1))
        page("from a topic that is not there", "p-z p-x p-w", 4, ("p-w", 1))
        page("from below 0", "p-z p-x", 4, ("p-x", -1))
        page("from beyond", "p-z p-x", 4, ("p-x", 10))
        page("none", "p-x", 0)
        page("as many as there are", "p-x p-y", 3)
        page("less than none", "p-x", -1)
        page("illegal names", "p+x .. p-x", 5)
        page("an empty name", "", 5, differs=ODD_REQUESTS)

    twins.compare(script)


# -- settings
# -------------------------------------------------------------------------------------------------


def test_topic_settings_are_altered(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        talk.topic("s-a")
        keys = ["retention.ms", "cleanup.policy", "segment.ms", "nonsense"]

        def change(step: str, *changes: tuple[str, int, str | None], **more: Any) -> None:
            talk.ask(step, alter(TOPIC, "s-a", *changes, **more))

        def show(step: str) -> None:
            for synonyms in (False, True):
                ask = settings_of(TOPIC, "s-a", keys, synonyms=synonyms)
                talk.ask(f"{step}, synonyms {synonyms}", ask)

        show("at first")
        change("set", ("retention.ms", SET, "1000"))
        talk.until(
            settings_of(TOPIC, "s-a", ["retention.ms"]),
            lambda reply: reply.results[0].configs[0].value == "1000",
        )
        show("set")
        change("append", ("cleanup.policy", APPEND, "compact"))
        change("append again", ("cleanup.policy", APPEND, "compact"))
        change("subtract", ("cleanup.policy", SUBTRACT, "delete"))
        change("subtract what is not there", ("cleanup.policy", SUBTRACT, "delete"))
        change("append to a number", ("retention.ms", APPEND, "1"))
        change("append to nothing known", ("nonsense", APPEND, "1"))
        change("unknown", ("nonsense", SET, "1"))
        change("delete unknown", ("nonsense", DELETE, None))
        change("null", ("retention.ms", SET, None))
        change("no number", ("retention.ms", SET, "x"))
        change("delete", ("retention.ms", DELETE, None), ("cleanup.policy", DELETE, None))
        change("delete again", ("retention.ms", DELETE, None))
        change("one twice", ("retention.ms", SET, "1"), ("retention.ms", SET, "2"))
        change("only looking", ("retention.ms", SET, "77"), validate_only=True)
        change("only looking at nonsense", ("retention.ms", SET, "x"), validate_only=True)
        change("nothing")
        for name in ("s-none", "a b", ""):
            talk.ask(f"of {name!r}", alter(TOPIC, name, ("retention.ms", SET, "1")))
            talk.ask(f"described {name!r}", settings_of(TOPIC, name, ["retention.ms"]))
        odd = alter(TOPIC, "s-a", ("retention.ms", 9, "1"))
        talk.ask("no such operation", odd, differs=ODD_REQUESTS)
        talk.ask("no such kind", alter(99, "s-a", ("retention.ms", SET, "1")))
        talk.ask("described, no such kind", settings_of(99, "s-a"))
        ask = replace(TOPIC, "s-a", {"segment.ms": "5000"})
        for version in versions(ApiKey.ALTER_CONFIGS):
            talk.ask(f"replaced, v{version}", ask, version)
            bad = replace(TOPIC, "s-a", {"segment.ms": None})
            talk.ask(f"replaced by null, v{version}", bad, version)
            bad = replace(TOPIC, "s-a", {"segment.ms": "a"})
            talk.ask(f"replaced by no number, v{version}", bad, version)
        talk.until(
            settings_of(TOPIC, "s-a", ["segment.ms"]),
            lambda reply: reply.results[0].configs[0].value == "5000",
        )
        show("replaced")
        for version in versions(ApiKey.DESCRIBE_CONFIGS):
            ask = settings_of(TOPIC, "s-a", ["segment.ms", "compression.type"])
            talk.ask(f"described, v{version}", ask, version)

    twins.compare(script)


def test_a_topic_has_exactly_kafkas_settings(twins: Twins) -> None:
    """Names, values, sources and types; defaults about replicas are settings of the broker."""

    def script(talk: Talk) -> None:
        talk.topic("s-all", 1, {"retention.ms": "5"})
        row = "`min.insync.replicas`"

        def without(reply: Any) -> Any:
            configs = reply.results[0].configs
            reply.results[0].configs = [c for c in configs if c.name != "min.insync.replicas"]
            return reply

        talk.ask("all", settings_of(TOPIC, "s-all"), see=without)
        talk.ask("none", settings_of(TOPIC, "s-all", []), see=without)
        talk.ask("copies", settings_of(TOPIC, "s-all", ["min.insync.replicas"]), differs=row)

    twins.compare(script)


NOT_A_NUMBER = "a ratio of `NaN`"
BOUNDS = (-131_073, -131_072, -3, -2, -1, 0, 1, 3, 4, 9, 10, 17, 18, 22, 23)
SIZES = (1023, 1024, 2**20 - 1, 2**20, 2**31 - 1, 2**31, 2**63 - 1, 2**63)
NUMBERS = [str(number) for number in (*BOUNDS, *SIZES, 0.5, 1.0, 1.1)]
SPELLINGS = ("", " 7 ", "0x10", "1_000", "1e3", "NaN", "Infinity", "true", "FALSE", "none", "*")
LISTS = ("0:1", "0:1,1:2", "0:x", "0:1,", ",", "delete", "compact,delete", "Compact")
WORDS = ("producer", "uncompressed", " zstd ", "ZSTD", " CreateTime ", "logappendtime")


def test_every_topic_setting_accepts_and_refuses_the_same_values_as_kafka(twins: Twins) -> None:
    """Every setting, including those without effect here, with each of these values."""

    def script(talk: Talk) -> None:
        talk.topic("s-edges")
        for name in sorted(TOPIC_SETTINGS):
            for value in (*NUMBERS, *SPELLINGS, *LISTS, *WORDS):
                ask = alter(TOPIC, "s-edges", (name, SET, value), validate_only=True)
                is_odd = (name, value) == ("min.cleanable.dirty.ratio", "NaN")
                talk.ask(f"{name}={value}", ask, differs=NOT_A_NUMBER if is_odd else None)

    twins.compare(script)


def await_setting(talk: Talk, name: str, value: str) -> None:
    """A change of a broker's settings takes a moment."""
    talk.until(
        settings_of(BROKER, name, ["log.retention.ms"]),
        lambda reply: value in [config.value for config in reply.results[0].configs],
    )


def test_broker_settings_are_altered(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        def change(step: str, name: str, *changes: tuple[str, int, str | None]) -> None:
            talk.ask(step, alter(BROKER, name, *changes))

        change("read only", "1", ("num.partitions", SET, "3"))
        change("read only for all", "", ("num.partitions", SET, "3"))
        change("no number", "1", ("log.retention.ms", SET, "x"))
        change("one broker's for all", "", ("listeners", SET, "PLAINTEXT://:1"))
        change("another broker", "2", ("log.retention.ms", SET, "3"))
        change("no broker", "x", ("log.retention.ms", SET, "3"))
        change("set", "1", ("log.retention.ms", SET, "77777"))
        change("set for all", "", ("log.retention.ms", SET, "88888"))
        for name, value in (("1", "77777"), ("", "88888")):
            await_setting(talk, name, value)
        keys = ["log.retention.ms", "message.max.bytes", "num.partitions", "nonsense"]
        for synonyms in (False, True):
            ask = settings_of(BROKER, "1", keys, synonyms=synonyms)
            talk.ask(f"described, synonyms {synonyms}", ask)
        talk.ask("of all", settings_of(BROKER, ""), differs="`min.insync.replicas`")
        talk.ask("one of all", settings_of(BROKER, "", ["log.retention.ms"]))
        for name in ("2", "x"):
            talk.ask(f"of {name}", settings_of(BROKER, name))
        change("deleted", "1", ("log.retention.ms", DELETE, None))
        change("deleted for all", "", ("log.retention.ms", DELETE, None))
        row = "an unknown dynamic broker setting"
        ask = alter(BROKER, "1", ("nonsense", SET, "3"))
        talk.ask("unknown", ask, differs=row)

    twins.compare(script)


AT_START = {
    "max.connection.creation.rate",
    "max.connections",
    "max.connections.per.ip",
    "max.connections.per.ip.overrides",
    "sasl.enabled.mechanisms",
    "ssl.cipher.suites",
    "ssl.client.auth",
    "ssl.enabled.protocols",
}
"""Dynamic in Apache Kafka, and read at the start here (docs/compatibility.md)."""


def test_every_broker_setting_accepts_and_refuses_the_same_values_as_kafka(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        for name in sorted(BROKER_SETTINGS.keys() - OWN - AT_START):
            for value in (*NUMBERS, *SPELLINGS, *LISTS, *WORDS):
                for broker in ("1", ""):
                    ask = alter(BROKER, broker, (name, SET, value), validate_only=True)
                    row = why_a_broker_differs(name, value, broker)
                    talk.ask(f"{broker or 'all'}: {name}={value}", ask, differs=row)

    twins.compare(script)


def why_a_broker_differs(name: str, value: str, broker: str) -> str | None:
    if (name, value) == ("log.cleaner.min.cleanable.ratio", "NaN"):
        return NOT_A_NUMBER
    is_number = value.strip().isdigit() and 1 <= int(value) < 2**31
    return f"`{name}`" if name == "min.insync.replicas" and broker and is_number else None


# -- the cluster
# ----------------------------------------------------------------------------------------------


def test_the_cluster_is_described(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        for version in versions(ApiKey.DESCRIBE_CLUSTER):
            for operations in (False, True):
                for endpoint_type in (1, 2, 9) if version else (1,):
                    request = DescribeClusterRequest(
                        include_cluster_authorized_operations=operations,
                        endpoint_type=endpoint_type,
                    )
                    name = f"{operations} {endpoint_type}, v{version}"
                    talk.ask(name, Ask(ApiKey.DESCRIBE_CLUSTER, request), version)

    twins.compare(script)


def test_leader_elections_and_reassignments(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        talk.topic("e-a", 2)
        for version in versions(ApiKey.ELECT_LEADERS):
            for election_type in (0, 1, 7) if version else (0,):
                for topic, indexes in (("e-a", [0, 9]), ("e-none", [0]), ("e-a", [])):
                    request = ElectLeadersRequest(
                        election_type=election_type,
                        topic_partitions=[TopicPartitions(topic=topic, partitions=indexes)],
                        timeout_ms=3_000,
                    )
                    name = f"{election_type} {topic} {indexes}, v{version}"
                    talk.ask(name, Ask(ApiKey.ELECT_LEADERS, request), version)
        wanted = [ListPartitionReassignmentsTopics(name="e-none", partition_indexes=[0])]
        for topics in (None, wanted, []):
            listing = ListPartitionReassignmentsRequest(timeout_ms=3_000, topics=topics)
            name = f"reassignments {topics and 'unknown'} {topics is None}"
            talk.ask(name, Ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, listing))

    twins.compare(script)


def test_all_leaders_are_elected(twins: Twins) -> None:
    def of_f_a(reply: ElectLeadersResponse) -> list[ReplicaElectionResult]:
        """The other topics are those of the tests before."""
        return [each for each in reply.replica_election_results if each.topic == "f-a"]

    def script(talk: Talk) -> None:
        talk.topic("f-a", 2)
        for version in versions(ApiKey.ELECT_LEADERS):
            for election_type in (0, 1) if version else (0,):
                request = ElectLeadersRequest(
                    election_type=election_type, topic_partitions=None, timeout_ms=3_000
                )
                talk.ask(
                    f"{election_type}, v{version}",
                    Ask(ApiKey.ELECT_LEADERS, request),
                    version,
                    see=of_f_a,
                )

    twins.compare(script)


def test_partitions_of_one_broker_are_reassigned(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        talk.topic("reassigned", 2)
        cases: list[tuple[str, int, list[int] | None]] = [
            ("reassigned", 0, [1]),
            ("reassigned", 0, None),
            ("reassigned", 0, []),
            ("reassigned", 0, [2]),
            ("reassigned", 0, [-1]),
            ("reassigned", 1, [1, 1]),
            ("reassigned", 1, [1, 2]),
            ("reassigned", 9, [1]),
            ("reassigned", -1, [1]),
            ("reassigned-none", 0, [1]),
            ("reassigned-none", 0, None),
            ("", 0, [1]),
        ]
        for version in versions(ApiKey.ALTER_PARTITION_REASSIGNMENTS):
            for allowed in (True, False) if version else (True,):
                for topic, index, replicas in cases:
                    wanted = ReassignablePartition(partition_index=index, replicas=replicas)
                    request = AlterPartitionReassignmentsRequest(
                        timeout_ms=3_000,
                        allow_replication_factor_change=allowed,
                        topics=[ReassignableTopic(name=topic, partitions=[wanted])],
                    )
                    name = f"{topic}-{index} {replicas} {allowed}, v{version}"
                    talk.ask(name, Ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, request), version)
            twice = [ReassignablePartition(partition_index=0, replicas=[1])] * 2
            request = AlterPartitionReassignmentsRequest(
                timeout_ms=3_000,
                topics=[
                    ReassignableTopic(name="reassigned", partitions=twice),
                    ReassignableTopic(name="reassigned", partitions=[]),
                ],
            )
            talk.ask(
                f"twice, v{version}", Ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, request), version
            )
            empty = AlterPartitionReassignmentsRequest(timeout_ms=3_000, topics=[])
            ask = Ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, empty)
            talk.ask(f"none, v{version}", ask, version)

    twins.compare(script)


def test_log_dirs_are_described(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        talk.topic("l-a", 2)
        talk.ask("a record", produce("l-a", batch(b"x")))

        def see(reply: Any) -> Any:
            """Without the path of the folder and the free space, which changes meanwhile."""
            for result in reply.results:
                result.log_dir = ""
                result.usable_bytes = 0
            return reply

        for version in versions(ApiKey.DESCRIBE_LOG_DIRS):
            wanted = [
                DescribableLogDirTopic(topic="l-a", partitions=[0, 1, 7]),
                DescribableLogDirTopic(topic="l-none", partitions=[0]),
            ]
            ask = Ask(ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=wanted))
            talk.ask(f"some, v{version}", ask, version, see=see)
            ask = Ask(ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=[]))
            talk.ask(f"none, v{version}", ask, version, see=see)

    twins.compare(script)


NOT_SERVED = {
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    ApiKey.SHARE_FETCH,
    ApiKey.SHARE_ACKNOWLEDGE,
}
"""In our tables only for the client and `fencepost tap`."""


def api_versions(name: str = "twin", version: str = "1.0") -> Ask:
    request = ApiVersionsRequest(client_software_name=name, client_software_version=version)
    return Ask(ApiKey.API_VERSIONS, request)


def test_api_versions_in_every_version(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        def served(reply: Any) -> Any:
            """What both serve, and the feature that clients look at."""
            return (
                reply.error_code,
                sorted(
                    (
                        a.api_key,
                        a.min_version,
                        min(a.max_version, newest_version(a.api_key)),
                    )
                    for a in reply.api_keys
                    if a.api_key in API and a.api_key not in NOT_SERVED
                ),
                [
                    (f.name, f.min_version_level, f.max_version_level)
                    for f in reply.finalized_features
                    if f.name == "transaction.version"
                ],
                [
                    (f.name, f.min_version, f.max_version)
                    for f in reply.supported_features
                    if f.name == "transaction.version"
                ],
            )

        for version in versions(ApiKey.API_VERSIONS):
            talk.ask(f"v{version}", api_versions(), version, see=served)
        for name, number in (
            ("", "1"),
            ("twin", ""),
            ("a b", "1"),
            ("-a", "1"),
            ("a-", "1"),
            ("a.b-c", "1.0-x"),
            ("ä", "1"),
            ("a_b", "1"),
            ("twin", "1 0"),
        ):
            ask = api_versions(name, number)
            talk.ask(f"{name!r} {number!r}", ask, see=lambda reply: reply.error_code)
        unknown = frame_as_written(ApiKey.API_VERSIONS, 3, api_versions().form)
        beyond = bytearray(unknown)
        beyond[6:8] = (99).to_bytes(2, "big")
        talk.note_bytes("a version to come", bytes(beyond), start=4, end=6)

    twins.compare(script)


@pytest.mark.parametrize("api", [ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA, ApiKey.END_TXN])
def test_versions_that_do_not_exist_are_refused(twins: Twins, api: ApiKey) -> None:
    """Other APIs have no error code for them."""

    def script(talk: Talk) -> None:
        frame = bytearray(frame_as_written(ApiKey.API_VERSIONS, 0, ApiVersionsRequest()))
        frame[4:6] = int(api).to_bytes(2, "big")
        for version in (99, -1, 32767, *range(API[api].min_version)):
            frame[6:8] = version.to_bytes(2, "big", signed=True)
            talk.note_bytes(f"v{version}", bytes(frame))

    twins.compare(script)
