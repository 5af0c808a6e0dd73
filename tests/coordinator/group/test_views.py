"""DescribeGroups and ListGroups."""

from __future__ import annotations

from fencepost.coordinator.group import views
from tests.coordinator.group.stage import GROUP, GroupStage, subscription


def test_a_stable_group_shows_its_members_with_metadata_and_assignment(stage: GroupStage) -> None:
    leader, _ = stage.stable(2)
    view = views.describe_group(stage.state, GROUP)
    assert view is not None
    assert view[:4] == (GROUP, "Stable", "consumer", "range")
    assert view.members[0] == views.MemberView(
        leader, None, "client", "/127.0.0.1", subscription("orders"), f"for {leader}".encode()
    )


def test_a_group_that_rebalances_shows_its_members_without_metadata(stage: GroupStage) -> None:
    stage.stable(1)
    stage.join()
    view = views.describe_group(stage.state, GROUP)
    assert view is not None
    assert view[:4] == (GROUP, "PreparingRebalance", "consumer", "")
    assert [member.metadata for member in view.members] == [b"", b""]


def test_a_missing_group_has_no_view() -> None:
    assert views.describe_group(GroupStage().state, GROUP) is None


def test_groups_are_listed_by_state_and_type_regardless_of_case(stage: GroupStage) -> None:
    stage.stable(1)
    stage.commit({"orders-0": 1}, group_id="simple")

    def listed(states: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> set[str]:
        return {view.group_id for view in views.list_groups(stage.state, states, types)}

    assert listed() == {GROUP, "simple"}
    assert listed(("stable",)) == {GROUP}
    assert listed((" EMPTY ", "Stable")) == {GROUP, "simple"}
    assert listed(("nonsense",)) == set()
    assert listed(types=("Classic",)) == {GROUP, "simple"}
    assert listed(types=("consumer",)) == set()
    kinds = {view.group_id: view.protocol_type for view in views.list_groups(stage.state)}
    assert kinds == {GROUP: "consumer", "simple": ""}
