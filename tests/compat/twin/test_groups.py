"""Goal: groups join, rebalance and refuse requests as those of Apache Kafka do.

Method: twin runs (see the package's docstring). A member that has to wait for others has
its own connection, called by its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tests.compat.twin.grouped import (
    SUBSCRIPTION,
    commit,
    delete_groups,
    delete_offsets,
    describe_groups,
    find_coordinator,
    heartbeat,
    join,
    leave,
    list_groups,
    sync,
)
from tests.compat.twin.talk import Ask, versions
from tests.compat.twin.transactional import offsets_of

if TYPE_CHECKING:
    from tests.compat.twin.talk import Later, Talk, Twins

REBALANCE_IN_PROGRESS = 27


class TwinMember:
    """A member of a group as its client knows it."""

    def __init__(self, talk: Talk, group: str, name: str, instance_id: str | None = None) -> None:
        self.talk = talk
        self.group = group
        self.name = name
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1

    def start_joining(self, step: str = "joins", version: int | None = None, **more: Any) -> Later:
        """Sends JoinGroup, after it has requested an id if it needs one."""
        talk = self.talk
        if not self.member_id and self.instance_id is None and (version is None or version >= 4):
            ask = join(self.group, **more)
            reply = talk.ask(f"{self.name} asks for an id", ask, version, on=self.name)
            self.member_id = reply.member_id
        ask = join(self.group, self.member_id, instance_id=self.instance_id, **more)
        return talk.send(f"{self.name} {step}", ask, version, on=self.name)

    def joined(self, later: Later) -> Any:
        reply = self.talk.receive(later)
        self.member_id, self.generation = reply.member_id, reply.generation_id
        return reply

    def join(self, step: str = "joins", version: int | None = None, **more: Any) -> Any:
        return self.joined(self.start_joining(step, version, **more))

    def start_syncing(
        self, assignments: dict[str, bytes] | None = None, protocol: str = "range"
    ) -> Later:
        ask = sync(
            self.group,
            self.member_id,
            self.generation,
            assignments,
            instance_id=self.instance_id,
            protocol_name=protocol,
        )
        return self.talk.send(f"{self.name} syncs", ask, on=self.name)

    def synced(self, later: Later) -> None:
        reply = self.talk.receive(later)
        assert reply.error_code == 0, f"the script is wrong: {reply}"

    def sync(self, assignments: dict[str, bytes] | None = None, protocol: str = "range") -> None:
        self.synced(self.start_syncing(assignments, protocol))

    def beat(self) -> Ask:
        return heartbeat(self.group, self.member_id, self.generation, instance_id=self.instance_id)

    def until_rebalance(self) -> None:
        self.talk.until(self.beat(), lambda reply: reply.error_code == REBALANCE_IN_PROGRESS)


def alone(talk: Talk, group: str, **more: Any) -> TwinMember:
    """A group of one member that has its assignment."""
    member = TwinMember(talk, group, "anna", **more)
    member.join()
    member.sync({member.member_id: b"share"})
    return member


def look(talk: Talk, moment: str, *groups: str) -> None:
    talk.ask(f"{moment}: described", describe_groups(*groups))

    def mine(reply: Any) -> Any:
        return [group for group in reply.groups if group.group_id in groups]

    talk.ask(f"{moment}: listed", list_groups(), see=mine)


# -- from join to leave
# ---------------------------------------------------------------------------------------


def test_a_group_of_two_members_from_start_to_end(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        group = "two"
        talk.topic("t-two")
        anna, bert = TwinMember(talk, group, "anna"), TwinMember(talk, group, "bert")
        anna.join()
        look(talk, "one joined", group)
        talk.ask("an early heartbeat", anna.beat())
        anna.sync({anna.member_id: b"all"})
        look(talk, "one is stable", group)
        talk.ask("a heartbeat", anna.beat())
        talk.ask("anna syncs again", sync(group, anna.member_id, 1))
        coming = bert.start_joining()
        anna.until_rebalance()
        look(talk, "bert waits", group)
        talk.ask("a sync while it rebalances", sync(group, anna.member_id, 1))
        ask = commit(group, {("t-two", 0): 1}, member_id=anna.member_id, generation=1)
        talk.ask("a commit while it rebalances", ask)
        anna.join("joins again")
        bert.joined(coming)
        look(talk, "both joined", group)
        ask = commit(group, {("t-two", 0): 2}, member_id=anna.member_id, generation=2)
        talk.ask("a commit before the shares are out", ask)
        waiting = bert.start_syncing()
        anna.sync({anna.member_id: b"half", bert.member_id: b"other half"})
        bert.synced(waiting)
        look(talk, "two are stable", group)
        for member in (anna, bert):
            ask = commit(
                group, {("t-two", 0): 5}, member_id=member.member_id, generation=2, metadata="m"
            )
            talk.ask(f"{member.name} commits", ask)
        talk.ask("the offset", offsets_of(group, None))
        talk.ask("bert joins unchanged", join(group, bert.member_id), on="bert")
        talk.ask("the group cannot be deleted", delete_groups(group))
        talk.ask("an offset cannot be deleted", delete_offsets(group, {"t-two": [0], "t": [0]}))
        talk.ask("bert leaves", leave(group, (bert.member_id, None)))
        talk.ask("anna learns of the rebalance", anna.beat())
        anna.join("joins again")
        anna.sync({anna.member_id: b"all"})
        talk.ask("anna leaves", leave(group, (anna.member_id, None)))
        look(talk, "empty", group)
        talk.ask("the offset is kept", offsets_of(group, None))
        talk.ask("deleted", delete_groups(group, group, "two-none"))
        look(talk, "gone", group)
        talk.ask("the offset is gone", offsets_of(group, "t-two"))

    twins.compare(script)


@pytest.mark.parametrize("version", range(10))
def test_join_group_in_every_version(twins: Twins, version: int) -> None:
    def script(talk: Talk) -> None:
        group = f"joining-{version}"
        anna = TwinMember(talk, group, "anna")
        anna.join(version=version)
        talk.ask(
            "its share", sync(group, anna.member_id, 1, {anna.member_id: b"x"}), min(version, 5)
        )
        talk.ask("a heartbeat", heartbeat(group, anna.member_id, 1), min(version, 4))
        talk.ask("an unknown member", join(group, "nobody"), version)
        talk.ask("no protocols", join(group, anna.member_id, protocols={}), version)
        other = {"other": SUBSCRIPTION}
        talk.ask("another protocol", join(f"{group}-new", "", protocols=other), version)
        talk.ask("a stranger's protocol", join(group, "", protocols=other), version)
        talk.ask("another kind", join(group, "", protocol_type="connect"), version)
        talk.ask("no kind", join(group, "", protocol_type=""), version)
        talk.ask("no kind for a new group", join(f"{group}-x", "", protocol_type=""), version)
        talk.ask("nothing for a new group", join(f"{group}-x", "", protocols={}), version)
        talk.ask("no group", join("", ""), version)
        for timeout_ms in (0, -1, 499, 1_800_001):
            ask = join(f"{group}-t", "", session_timeout_ms=timeout_ms)
            talk.ask(f"a session of {timeout_ms}", ask, version)
        for name in ("anna", "nobody"):
            member_id = anna.member_id if name == "anna" else name
            talk.ask(f"{name} leaves", leave(group, (member_id, None)), min(version, 5))
        look(talk, "then", group, f"{group}-new", f"{group}-x", f"{group}-t")

    twins.compare(script)


def test_an_unreadable_subscription(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        group, odd = "unreadable", {"range": b"\x00\x01meta"}
        member_id = talk.ask("a member", join(group, protocols=odd)).member_id
        row = "incomplete requests"
        talk.ask_in_vain("it joins", join(group, member_id, protocols=odd), differs=row)

    twins.compare(script)


def test_the_protocol_is_chosen_among_those_of_all_members(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        group = "choosing"
        anna, bert = TwinMember(talk, group, "anna"), TwinMember(talk, group, "bert")
        offers = {"a": SUBSCRIPTION, "b": SUBSCRIPTION}
        anna.join(protocols=offers)
        anna.sync({anna.member_id: b"x"}, "a")
        talk.ask("nothing in common", join(group, "", protocols={"c": SUBSCRIPTION}))
        coming = bert.start_joining(protocols={"b": SUBSCRIPTION, "c": SUBSCRIPTION})
        anna.until_rebalance()
        anna.join("joins again", protocols=offers)
        bert.joined(coming)
        look(talk, "both", group)
        ask = sync(group, anna.member_id, 2, protocol_type="consumer", protocol_name="a")
        talk.ask("a sync for another protocol", ask)
        ask = sync(group, anna.member_id, 2, protocol_type="connect", protocol_name="b")
        talk.ask("a sync for another kind", ask)
        ask = sync(
            group,
            anna.member_id,
            2,
            {anna.member_id: b"1", "nobody": b"2"},
            protocol_type="consumer",
            protocol_name="b",
        )
        talk.ask("a sync that fits", ask)
        bert.sync(protocol="b")
        changed = {"b": SUBSCRIPTION, "a": SUBSCRIPTION}
        waiting = bert.start_joining("comes with another offer", protocols=changed)
        anna.until_rebalance()
        anna.join("joins again", protocols=offers)
        bert.joined(waiting)

    twins.compare(script)


def test_a_silent_member_is_dropped(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        group = "silent"
        anna = TwinMember(talk, group, "anna")
        anna.join(session_timeout_ms=500)
        anna.sync({anna.member_id: b"x"})
        talk.until(describe_groups(group), lambda reply: reply.groups[0].group_state == "Empty")
        look(talk, "dropped", group)
        talk.ask("a late heartbeat", anna.beat())
        ask = commit(group, {("t", 0): 1}, member_id=anna.member_id, generation=1)
        talk.ask("a late commit", ask)
        talk.ask("it comes back with its old id", join(group, anna.member_id))

    twins.compare(script)


# -- static members
# -------------------------------------------------------------------------------------------


def test_static_members(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        group = "static"
        talk.topic("t-static")
        anna = alone(talk, group, instance_id="one")
        bert = TwinMember(talk, group, "bert", instance_id="two")
        coming = bert.start_joining()
        anna.until_rebalance()
        anna.join("joins again")
        bert.joined(coming)
        waiting = bert.start_syncing()
        anna.sync({anna.member_id: b"1", bert.member_id: b"2"})
        bert.synced(waiting)
        look(talk, "both", group)
        again = TwinMember(talk, group, "bert restarted", instance_id="two")
        again.join()
        look(talk, "bert restarted", group)
        talk.ask("its share", sync(group, again.member_id, again.generation, instance_id="two"))
        old = bert.member_id
        talk.ask("the old one beats", heartbeat(group, old, 2, instance_id="two"))
        talk.ask("the old one syncs", sync(group, old, 2, instance_id="two"))
        talk.ask("the old one joins", join(group, old, instance_id="two"))
        ask = commit(group, {("t-static", 0): 1}, member_id=old, generation=2, instance_id="two")
        talk.ask("the old one commits", ask)
        talk.ask("the old one leaves", leave(group, (old, "two")))
        for instance_id, member_id in (
            ("one", again.member_id),
            ("three", anna.member_id),
            ("three", ""),
            ("three", "nobody"),
            (None, "nobody"),
            (None, ""),
        ):
            name = f"{instance_id} {'nobody' if member_id == 'nobody' else bool(member_id)}"
            ask = heartbeat(group, member_id, 2, instance_id=instance_id)
            talk.ask(f"a heartbeat of {name}", ask)
            ask = sync(group, member_id, 2, instance_id=instance_id)
            talk.ask(f"a sync of {name}", ask)
            ask = commit(
                group,
                {("t-static", 0): 1},
                member_id=member_id,
                generation=2,
                instance_id=instance_id,
            )
            talk.ask(f"a commit of {name}", ask)
            talk.ask(f"{name} leaves", leave(group, (member_id or "x", instance_id or "x")))
        talk.ask("an unknown member of an instance joins", join(group, "x", instance_id="one"))
        talk.ask("an instance without a name", join("static-nameless", "", instance_id=""))
        talk.ask("one with spaces", join("static-spaces", "", instance_id="a b"))
        talk.ask("removed by their instances", leave(group, ("", "one"), ("", "two"), ("", "x")))
        look(talk, "empty", group)

    twins.compare(script)


# -- refusals
# -------------------------------------------------------------------------------------------------


def test_unknown_members_are_refused(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        anna = alone(talk, "known")
        for group in ("known", "unknown", ""):
            for member_id, generation in (
                (anna.member_id, 0),
                (anna.member_id, 2),
                (anna.member_id, -1),
                ("nobody", 1),
                ("", 1),
                ("", -1),
            ):
                who = {anna.member_id: "anna"}.get(member_id, member_id or "nameless")
                name = f"{who} at {generation} in {group!r}"
                for version in versions(ApiKey.HEARTBEAT):
                    ask = heartbeat(group, member_id, generation)
                    talk.ask(f"heartbeat: {name}, v{version}", ask, version)
                for version in versions(ApiKey.SYNC_GROUP):
                    ask = sync(group, member_id, generation)
                    talk.ask(f"sync: {name}, v{version}", ask, version)
                ask = sync(group, member_id, generation, protocol_type=None, protocol_name=None)
                talk.ask(f"sync without a protocol: {name}", ask)
            for version in versions(ApiKey.LEAVE_GROUP):
                talk.ask(
                    f"nobody leaves {group!r}, v{version}", leave(group, ("nobody", None)), version
                )
                talk.ask(
                    f"nameless leaves {group!r}, v{version}", leave(group, ("", None)), version
                )
            talk.ask(f"none leaves {group!r}", leave(group))
        look(talk, "then", "known", "unknown", "")

    twins.compare(script)


def test_offsets_are_committed_in_every_version(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        talk.topic("kept", 3)
        anna = alone(talk, "busy")
        for version in range(2, 10):
            v = f"v{version}"
            one = {("kept", 0): version}
            talk.ask(f"{v}: simple", commit("simple", one, metadata=f"m{version}"), version)
            talk.ask(f"{v}: no words", commit("simple", {("kept", 1): 3}, metadata=None), version)
            talk.ask(f"{v}: negative", commit("simple", {("kept", 2): -1}), version)
            talk.ask(f"{v}: long", commit("simple", one, metadata="x" * 4097), version)
            mixed = {("kept", 0): 1, ("kept", 9): 1, ("none", 0): 1, ("a b", 0): 1}
            talk.ask(f"{v}: unknown", commit("simple-mixed", mixed), version)
            talk.ask(f"{v}: nothing", commit("simple", {}), version)
            talk.ask(f"{v}: no group", commit("", one), version)
            for member_id, generation in (
                ("", -1),
                ("nobody", 1),
                ("nobody", -1),
                ("", 1),
                (anna.member_id, 1),
                (anna.member_id, 0),
                (anna.member_id, 2),
                (anna.member_id, -1),
            ):
                who = {anna.member_id: "anna"}.get(member_id, member_id or "nameless")
                for group in ("busy", "simple", "fresh"):
                    ask = commit(group, one, member_id=member_id, generation=generation)
                    talk.ask(f"{v}: {who} at {generation} in {group}", ask, version)
            talk.ask(f"{v}: all", offsets_of("simple", None))

    twins.compare(script)


def test_offsets_are_fetched_in_every_version(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        topic_id = talk.topic("read-back", 3)
        talk.ask("committed", commit("simple-2", {("read-back", 0): 5, ("read-back", 1): 6}))
        for version in range(1, 10):
            v = f"v{version}"
            talk.ask(f"{v}: some", offsets_of("simple-2", "read-back", 0, 1, 2, 9), version)
            talk.ask(f"{v}: of an unknown topic", offsets_of("simple-2", "none", 0), version)
            talk.ask(f"{v}: of an unknown group", offsets_of("nobody", "read-back", 0), version)
            talk.ask(f"{v}: no group", offsets_of("", "read-back", 0), version)
            if version >= 2:
                talk.ask(f"{v}: all", offsets_of("simple-2", None), version)
                talk.ask(f"{v}: all of an unknown group", offsets_of("nobody", None), version)
            if version >= 8:
                groups = [
                    OffsetFetchRequestGroup(group_id=group, topics=None)
                    for group in ("simple-2", "nobody", "busy")
                ]
                ask = Ask(ApiKey.OFFSET_FETCH, OffsetFetchRequest(groups=groups))
                talk.ask(f"{v}: of several groups", ask, version)
        for group, identity in (("simple-2", topic_id), ("simple-2", bytes(15) + b"\x09")):
            topics = [OffsetFetchRequestTopics(topic_id=identity, partition_indexes=[0, 1])]
            groups = [OffsetFetchRequestGroup(group_id=group, topics=topics)]
            ask = Ask(ApiKey.OFFSET_FETCH, OffsetFetchRequest(groups=groups))
            talk.ask(f"by id: {identity == topic_id}", ask, 10)
        for identity in (topic_id, bytes(15) + b"\x09", bytes(16)):
            ask = commit("simple-2", {("read-back", 0): 77})
            ask.form.topics[0].topic_id = identity
            talk.ask(f"committed by id: {identity == topic_id} {any(identity)}", ask, 10)
        talk.ask("in the end", offsets_of("simple-2", None), 10)

    twins.compare(script)


def test_members_fetch_offsets(twins: Twins) -> None:
    """From v9 on a member may identify itself; classic groups do not check it."""

    def script(talk: Talk) -> None:
        talk.topic("t-members")
        anna = alone(talk, "fetching")
        for group in ("fetching", "fetching-none"):
            for member_id, epoch in (
                (None, -1),
                ("", -1),
                (anna.member_id, 1),
                (anna.member_id, 9),
                ("nobody", 1),
                (None, 1),
            ):
                who = {anna.member_id: "anna"}.get(member_id or "", member_id)
                wanted = OffsetFetchRequestGroup(
                    group_id=group,
                    member_id=member_id,
                    member_epoch=epoch,
                    topics=[OffsetFetchRequestTopics(name="t-members", partition_indexes=[0])],
                )
                ask = Ask(ApiKey.OFFSET_FETCH, OffsetFetchRequest(groups=[wanted]))
                talk.ask(f"{who} at {epoch} in {group}", ask, 9)

    twins.compare(script)


def test_offsets_are_deleted(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        talk.topic("t-deleted", 2)
        offsets = {("t-deleted", 0): 1, ("t-deleted", 1): 2}
        talk.ask("committed", commit("deleting", offsets))
        talk.ask("unknown group", delete_offsets("deleting-none", {"t-deleted": [0]}))
        talk.ask("no group", delete_offsets("", {"t-deleted": [0]}))
        wanted = {"t-deleted": [0, 7], "none": [0], "a b": [0]}
        talk.ask("some", delete_offsets("deleting", wanted))
        talk.ask("left", offsets_of("deleting", None))
        talk.ask("nothing", delete_offsets("deleting", {}))
        talk.ask("again", delete_offsets("deleting", {"t-deleted": [0, 1]}))
        talk.ask("none left", offsets_of("deleting", None))
        look(talk, "then", "deleting")
        anna = alone(talk, "deleting-busy")
        ask = commit("deleting-busy", offsets, member_id=anna.member_id, generation=1)
        talk.ask("a member commits", ask)
        talk.ask(
            "a topic that no member reads", delete_offsets("deleting-busy", {"t-deleted": [0]})
        )
        talk.ask("a topic that a member reads", delete_offsets("deleting-busy", {"t": [0]}))

    twins.compare(script)


# -- views
# ---------------------------------------------------------------------------------------------


def test_groups_are_described_and_listed_in_every_version(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        names = ("view-stable", "view-empty", "view-joining", "view-none", "")
        talk.topic("t-view")
        alone(talk, "view-stable")
        talk.ask("committed", commit("view-empty", {("t-view", 0): 1}))
        TwinMember(talk, "view-joining", "bert").join()
        for version in versions(ApiKey.DESCRIBE_GROUPS):
            talk.ask(f"described, v{version}", describe_groups(*names), version)
            if version >= 3:
                ask = describe_groups(*names, operations=True)
                talk.ask(f"described with operations, v{version}", ask, version)
        talk.ask("twice", describe_groups("view-stable", "view-stable"))
        talk.ask("none", describe_groups())

        def mine(reply: Any) -> Any:
            reply.groups = [group for group in reply.groups if group.group_id in names]
            return reply

        for version in versions(ApiKey.LIST_GROUPS):
            talk.ask(f"listed, v{version}", list_groups(), version, see=mine)
        for state in (
            "Stable",
            "stable",
            "Empty",
            "CompletingRebalance",
            "PreparingRebalance",
            "Dead",
            "Assigning",
            "Nonsense",
            "",
        ):
            for version in (4, 5):
                ask = list_groups([state])
                talk.ask(f"listed by {state!r}, v{version}", ask, version, see=mine)
        for kind in ("classic", "Classic", "consumer", "share", "nonsense", ""):
            talk.ask(f"listed by kind {kind!r}", list_groups([], [kind]), see=mine)
        ask = list_groups(["Stable", "Empty", "Nonsense"], ["classic", "consumer"])
        talk.ask("listed by much", ask, see=mine)
        for version in versions(ApiKey.DELETE_GROUPS):
            talk.ask(f"deleted, v{version}", delete_groups(*names), version)
        talk.ask("none deleted", delete_groups())
        talk.ask("afterwards", describe_groups(*names))

    twins.compare(script)


def test_coordinators_are_found(twins: Twins) -> None:
    def script(talk: Talk) -> None:
        for version in versions(ApiKey.FIND_COORDINATOR):
            for key_type in (0, 1, 2, 3, -1):
                if key_type and not version:
                    continue
                for key in ("somebody", "", "x" * 1000):
                    name = f"{key[:10]!r} of {key_type}, v{version}"
                    talk.ask(name, find_coordinator(key_type, key), version)
            if version >= 4:
                talk.ask(f"several, v{version}", find_coordinator(1, "a", "b", "", "a"), version)
                talk.ask(f"none, v{version}", find_coordinator(0), version)

    twins.compare(script)
