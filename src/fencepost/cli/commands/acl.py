"""`fencepost acl`: who may do what, on fencepost or Apache Kafka.

A resource is written TYPE:NAME (`topic:orders`, `group:readers`, `txn:writer`, `cluster`), and a
prefix with a star at its end (`topic:orders-*`). `topic:*` are all topics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fencepost.base.failures import FencepostError
from fencepost.cli.connection import AsJson, Connection, connected
from fencepost.cli.layout import App
from fencepost.cli.output import output
from fencepost.coordinator.acl.grants import (
    LEDGER_TOPIC,
    consumer_rights,
    producer_rights,
    spark_sink_rights,
    transactional_rights,
)
from fencepost.coordinator.acl.rules import javas_host, why_no_client_is_at
from fencepost.coordinator.acl.words import (
    read_operation,
    read_resource,
    read_rule,
    refuse_without_effect,
    resource_words,
    words_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fencepost.client.acls import Acl
    from fencepost.client.blocking import Cluster
    from fencepost.coordinator.acl.decide import Policy
    from fencepost.coordinator.acl.rules import Rule

app = App(help="List, add, remove and check ACLs: who may do what.", no_args_is_help=True)

Principal = Annotated[
    str, typer.Argument(metavar="PRINCIPAL", help="A type and a name, such as User:alice.")
]
OperationName = Annotated[
    str, typer.Argument(metavar="OPERATION", help="read, write, describe, create, alter, all ...")
]
Resource = Annotated[
    str,
    typer.Argument(
        metavar="RESOURCE", help="topic:NAME, group:NAME, txn:ID or cluster; NAME* is a prefix."
    ),
]
Deny = Annotated[bool, typer.Option("--deny", help="A rule that denies; the default allows.")]
Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Only from this address.")]


@app.command("list", short_help="List ACLs.")
@connected
def list_command(
    connection: Connection,
    resource: Annotated[
        str | None,
        typer.Argument(
            metavar="RESOURCE",
            help="Only those that are about this resource, by its name, a prefix or `*`.",
            show_default=False,
        ),
    ] = None,
    principal: Annotated[
        str | None, typer.Option("--principal", metavar="PRINCIPAL", help="Only of this principal.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List ACLs, sorted by resource.

    Example: fencepost acl list topic:orders
    """
    from fencepost.client.acls import AclFilter
    from fencepost.coordinator.acl.rules import PatternType

    wanted = AclFilter(principal=principal)
    if resource is not None:
        kind, name, _ = read_resource(resource, is_pattern=False)
        wanted = wanted._replace(
            resource_type=kind, resource_name=name, pattern_type=PatternType.MATCH
        )
    with connection.open() as cluster:
        rules = _fetch(cluster, wanted)
    _show(rules, "There are no such ACLs.", as_json=as_json)


@app.command("add", short_help="Add an ACL.")
@connected
def add_command(
    connection: Connection,
    principal: Principal,
    operation: OperationName,
    resource: Resource,
    deny: Deny = False,
    host: Host = "*",
    as_json: AsJson = False,
) -> None:
    """Add an ACL. It is not an error if it exists already.

    Example: fencepost acl add User:alice read topic:orders
    """
    rule = read_rule(principal, operation, resource, deny=deny, host=host)
    refuse_without_effect(rule)
    rule = rule._replace(host=javas_host(host))  # Any broker knows this notation.
    with connection.open() as cluster:
        _create(cluster, [rule])
    _show([rule], "", as_json=as_json)


@app.command("remove", short_help="Remove an ACL.")
@connected
def remove_command(
    connection: Connection,
    principal: Principal,
    operation: OperationName,
    resource: Resource,
    deny: Deny = False,
    host: Host = "*",
    as_json: AsJson = False,
) -> None:
    """Remove exactly this ACL, as `acl list` shows it.

    Example: fencepost acl remove User:alice read topic:orders
    """
    from fencepost.client.acls import AclFilter, delete_acls

    rule = read_rule(principal, operation, resource, deny=deny, host=host)
    hosts = [host] if why_no_client_is_at(host) else list(dict.fromkeys((host, javas_host(host))))
    wanted = [AclFilter(*rule._replace(host=each)) for each in hosts]
    with connection.open() as cluster:
        found = cluster.run(delete_acls(cluster.core, wanted))
    if not found:
        raise FencepostError(
            f"There is no ACL `{words_of(rule)}`; `fencepost acl list` shows those there are."
        )
    _show([_rule_of(each) for each in found], "", as_json=as_json)


@app.command("check", short_help="Show whether a principal may do something, and by which rule.")
@connected
def check_command(
    connection: Connection,
    principal: Principal,
    operation: OperationName,
    resource: Resource,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="The address of the client.")
    ] = "127.0.0.1",
    as_json: AsJson = False,
) -> None:
    """Show whether a principal may do something, and the rule that decides.

    The brokers' ACLs are listed, and decided here as a broker decides. Exits with 3 if it is
    denied. Super users are known only if the broker shows its settings to this user.

    Example: fencepost acl check User:alice write topic:orders
    """
    from fencepost.client.acls import AclFilter
    from fencepost.coordinator.acl.decide import Question, decide
    from fencepost.coordinator.acl.state import AclState

    kind, name, is_prefix = read_resource(resource)
    if is_prefix:
        raise FencepostError("A client asks for one resource: give its name, without a star.")
    if why := why_no_client_is_at(host):
        raise FencepostError(why)
    asked = Question(principal, host, read_operation(operation), kind, name)
    with connection.open() as cluster:
        state = AclState()
        for number, rule in enumerate(_fetch(cluster, AclFilter())):
            state.add(number.to_bytes(16, "big"), rule)
        policy = _policy(cluster)
    verdict = decide(state, policy, asked)
    row = {
        "answer": "allowed" if verdict.is_allowed else "denied",
        "by": verdict.why.value if verdict.rule is None else words_of(verdict.rule),
    }
    output(as_json).table([row], ["answer", "by"], "", can_go=())
    if not verdict.is_allowed:
        raise typer.Exit(3)


def _policy(cluster: Cluster) -> Policy:
    """The broker's settings, as far as it shows them."""
    from fencepost.client.configs import broker_settings
    from fencepost.coordinator.acl.decide import Policy

    brokers = cluster.metadata(()).brokers
    names = ("super.users", "allow.everyone.if.no.acl.found")
    found = cluster.run(broker_settings(cluster.core, list(brokers)[:1], names))
    shown = next(iter(found.values()), {})
    users = (each.strip() for each in (shown.get("super.users") or "").split(";"))
    is_open = shown.get("allow.everyone.if.no.acl.found") == "true"
    return Policy(frozenset(each for each in users if each), is_open)


# -- grants
# ------------------------------------------------------------------------------------------------

grants = App(help="Give a program the rights that it needs, and no others.", no_args_is_help=True)
app.add_typer(grants, name="grant", short_help="Give a program the rights that it needs.")

Topics = Annotated[
    list[str], typer.Option("--topic", metavar="TOPIC", help="A topic to write to; repeatable.")
]
Sources = Annotated[
    list[str], typer.Option("--from", metavar="TOPIC", help="A topic to read; repeatable.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the ACLs, and add none.")]


@grants.command("producer", short_help="Write to topics.")
@connected
def grant_producer(
    connection: Connection,
    principal: Principal,
    topic: Topics,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Let a producer write to topics, also an idempotent one.

    Example: fencepost acl grant producer User:alice --topic orders
    """
    _grant(connection, principal, producer_rights(topic), dry_run=dry_run, as_json=as_json)


@grants.command("consumer", short_help="Read topics in a group.")
@connected
def grant_consumer(
    connection: Connection,
    principal: Principal,
    source: Sources,
    group: Annotated[str, typer.Option("--group", metavar="GROUP", help="Its group.")],
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Let a consumer read topics as a member of a group, and commit its offsets.

    Example: fencepost acl grant consumer User:alice --from orders --group billing
    """
    rights = consumer_rights(source, group)
    _grant(connection, principal, rights, dry_run=dry_run, as_json=as_json)


@grants.command("transactional", short_help="Write in transactions, and commit offsets in them.")
@connected
def grant_transactional(
    connection: Connection,
    principal: Principal,
    transactional_id: Annotated[
        str, typer.Option("--transactional-id", metavar="ID", help="Its id, or a prefix with *.")
    ],
    topic: Topics,
    source: Sources = [],  # noqa: B006 - typer copies it
    group: Annotated[
        str | None,
        typer.Option("--group", metavar="GROUP", help="The group whose offsets it commits."),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Let a transactional producer write; with --from and --group it reads and commits offsets.

    Example: fencepost acl grant transactional User:alice --transactional-id billing-* --topic bills
    """
    rights = transactional_rights(transactional_id, topic, source, group)
    _grant(connection, principal, rights, dry_run=dry_run, as_json=as_json)


@grants.command("spark-sink", short_help="Write with the exactly-once sink for Spark.")
@connected
def grant_spark_sink(
    connection: Connection,
    principal: Principal,
    transactional_id: Annotated[
        str, typer.Option("--transactional-id", metavar="ID", help="The query's id.")
    ],
    topic: Topics,
    source: Sources = [],  # noqa: B006 - typer copies it
    ledger: Annotated[
        str, typer.Option("--ledger", metavar="TOPIC", help="The topic of the ledger.")
    ] = LEDGER_TOPIC,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Let a query write with the sink, and read its Kafka sources (--from).

    The ledger's topic must exist: `fencepost ledger create`.

    Example: fencepost acl grant spark-sink User:spark --transactional-id refunds --topic refunds
    """
    rights = spark_sink_rights(transactional_id, topic, source, ledger)
    _grant(connection, principal, rights, dry_run=dry_run, as_json=as_json)


def _grant(
    connection: Connection,
    principal: str,
    rights: Sequence[tuple[str, str]],
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    rules = [read_rule(principal, *each, deny=False, host="*") for each in rights]
    if not dry_run:
        with connection.open() as cluster:
            _create(cluster, rules)
    _show(rules, "", as_json=as_json)
    if dry_run:
        output(as_json).note("Nothing was added (--dry-run).")


# -- between the wire and rules
# ------------------------------------------------------------------------------------------------


def _fetch(cluster: Cluster, wanted: Any) -> list[Rule]:
    from fencepost.client.acls import describe_acls

    return sorted(_rule_of(acl) for acl in cluster.run(describe_acls(cluster.core, wanted)))


def _create(cluster: Cluster, rules: Sequence[Rule]) -> None:
    from fencepost.client.acls import Acl, create_acls

    cluster.run(create_acls(cluster.core, [Acl(*rule) for rule in rules]))


def _rule_of(acl: Acl) -> Rule:
    from fencepost.coordinator.acl.rules import (
        Operation,
        PatternType,
        Permission,
        ResourceType,
        Rule,
    )

    return Rule(
        ResourceType(acl.resource_type),
        acl.resource_name,
        PatternType(acl.pattern_type),
        acl.principal,
        acl.host,
        Operation(acl.operation),
        Permission(acl.permission),
    )


def _show(rules: Sequence[Rule], empty: str, *, as_json: bool) -> None:
    rows = [
        {
            "resource": resource_words(rule),
            "permission": rule.permission.name.lower(),
            "principal": rule.principal,
            "host": rule.host,
            "operation": rule.operation.name.lower(),
        }
        for rule in rules
    ]
    columns = ["resource", "permission", "principal", "host", "operation"]
    output(as_json).table(rows, columns, empty)
