"""Whether absence is evidence: would this caller see every transactional id?

ListTransactions leaves out the ids that the caller may not describe, without an error, and no
request tells the caller's rights on transactional ids as a whole. They can be proven all the same:

1. The caller may describe an id that no one uses (a random one).
2. That holds for all ids. Either the cluster has no authorizer (DescribeAcls answers
   SECURITY_DISABLED), or its rules say so: none of them denies anything, and either there is a rule
   for all ids (`*`) or there is no rule at all. With rules for some ids only, the random id may be
   visible because no rule names it (allow.everyone.if.no.acl.found) while others are hidden.

A broker that did not answer, or a partition of __transaction_state without a leader, hides the ids
of its coordinators too. If that topic does not exist, there is no id; the probe is not sent then,
because looking for its coordinator would create the topic.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fencepost.base.errors import ErrorCode
from fencepost.client.failures import ClientError
from fencepost.client.survey.asking import Missing
from fencepost.client.survey.coordinators import leaderless_coordinators
from fencepost.client.survey.rights import DENY, LITERAL, Acl, may_describe, transactional_id_acls

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fencepost.client.blocking import Cluster

ALL: Final = "*"


@dataclass(frozen=True, slots=True)
class Visibility:
    """Whether every transactional id was visible, and why or why not."""

    is_complete: bool
    reason: str


def look_at_visibility(cluster: Cluster, missing: Mapping[int, Missing]) -> Visibility:
    """Asks for the caller's rights; `missing` are the brokers that did not list their ids."""
    leaderless = cluster.run(leaderless_coordinators(cluster.core))
    hidden = judge_coordinators(list(missing.values()), leaderless)
    if hidden is not None:
        return hidden
    probe = f"fencepost-probe-{uuid.uuid4().hex}"
    may = cluster.run(may_describe(cluster.core, probe))
    try:
        rules = cluster.run(transactional_id_acls(cluster.core))
    except ClientError as problem:
        rules = Missing(str(problem))
    return judge_rights(probe, may, rules)


def judge_coordinators(
    missing: Sequence[Missing], leaderless: Sequence[int] | Missing
) -> Visibility | None:
    """Decides by what coordinators answer; None if the caller's rights decide."""
    if missing:
        return Visibility(False, "; ".join(sorted({each.reason for each in missing})))
    if isinstance(leaderless, Missing):
        if leaderless.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return Visibility(True, "the cluster has no transactional ids")
        return Visibility(
            False, "this user may not see whether __transaction_state is available as a whole"
        )
    if leaderless:
        names = ", ".join(map(str, leaderless))
        return Visibility(False, f"__transaction_state has no leader for partition {names}")
    return None


def judge_rights(
    probe: str, may_describe_probe: bool | None, rules: Sequence[Acl] | Missing
) -> Visibility:
    """Decides by the rules above."""
    if not may_describe_probe:
        return Visibility(False, "this user may not describe every transactional id")
    if isinstance(rules, Missing):
        if rules.code == ErrorCode.SECURITY_DISABLED:
            return Visibility(True, "the cluster has no authorizer")
        return Visibility(
            False, "this user may not list the ACLs that decide which ids are visible to it"
        )
    return _judge_rules(probe, rules)


def _judge_rules(probe: str, rules: Sequence[Acl]) -> Visibility:
    if any(rule.permission == DENY for rule in rules):
        return Visibility(False, "an ACL denies access to some transactional ids")
    matching = [rule for rule in rules if _matches(rule, probe)]
    if rules and not any(rule.name == ALL for rule in matching):
        return Visibility(
            False, "only some transactional ids have ACLs, and others may be hidden from this user"
        )
    return Visibility(True, "this user may describe any transactional id, and no ACL denies one")


def _matches(rule: Acl, name: str) -> bool:
    if rule.pattern_type == LITERAL:
        return rule.name in (ALL, name)
    return name.startswith(rule.name)
