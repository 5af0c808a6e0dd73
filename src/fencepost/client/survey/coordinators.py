"""The transactional ids of all coordinators, as far as they answer."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fencepost.base.errors import ErrorCode, error_name
from fencepost.base.ids import TRANSACTION_STATE_TOPIC
from fencepost.client.admin import (
    ListedTransaction,
    TransactionView,
    read_transactions,
    transaction_view,
    transactions_request,
)
from fencepost.client.calls import Attempt, Core, error_code, refresh_metadata
from fencepost.client.steps import Steps
from fencepost.client.survey.asking import Missing, ask_all_brokers, ask_brokers, chunks
from fencepost.wire.apis import ApiKey
from fencepost.wire.forms.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)


def transactions_of(
    core: Core,
    *,
    producer_ids: Collection[int] = (),
    states: Collection[str] = (),
    longer_than_ms: int = -1,
    pattern: str | None = None,
) -> Steps[tuple[list[ListedTransaction], dict[int, Missing]]]:
    """Lists ids of all coordinators, and the brokers that did not answer."""
    request = transactions_request(states, producer_ids, longer_than_ms, pattern)
    replies = yield from ask_all_brokers(core, ApiKey.LIST_TRANSACTIONS, request, error_code)
    found = read_transactions(
        {broker: form for broker, form in replies.items() if not isinstance(form, Missing)}
    )
    missing = {
        broker: form
        if form.broker == broker
        else Missing(f"broker {broker} does not list its ids: {form.reason}", form.code, broker)
        for broker, form in replies.items()
        if isinstance(form, Missing)
    }
    return found, missing


def describe_listed(
    core: Core, listed: Collection[ListedTransaction]
) -> Steps[dict[str, TransactionView | Missing]]:
    """Describes listed ids, many with one request to their coordinator."""
    found: dict[str, TransactionView | Missing] = {}
    by_coordinator: dict[int, list[str]] = {}
    for each in listed:
        by_coordinator.setdefault(each.coordinator, []).append(each.transactional_id)
    for broker, ids in by_coordinator.items():
        for some in chunks(ids):
            request = DescribeTransactionsRequest(transactional_ids=some)
            replies = yield from ask_brokers(
                core, ApiKey.DESCRIBE_TRANSACTIONS, {broker: request}, _first_passing_code
            )
            found |= _views(some, replies[broker])
    return found


def _first_passing_code(form: DescribeTransactionsResponse) -> tuple[int, str | None]:
    """Returns an error that may pass, so that the request is repeated; others count per id."""
    codes = [state.error_code for state in form.transaction_states]
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return (loading if loading in codes else 0), None


def _views(
    ids: Sequence[str], reply: DescribeTransactionsResponse | Missing
) -> dict[str, TransactionView | Missing]:
    if isinstance(reply, Missing):
        return dict.fromkeys(ids, reply)
    return {
        state.transactional_id: transaction_view(state)
        or Missing(error_name(state.error_code), state.error_code)
        for state in reply.transaction_states
    }


def leaderless_coordinators(core: Core) -> Steps[list[int] | Missing]:
    """Returns the partitions of __transaction_state without a leader: no broker lists their ids.

    Missing if the topic does not exist (UNKNOWN_TOPIC_OR_PARTITION), or may not be described.
    """
    attempt = Attempt(core, ApiKey.METADATA, "")
    form = yield from refresh_metadata(core, [TRANSACTION_STATE_TOPIC], attempt)
    (topic,) = form.topics
    if topic.error_code and not topic.partitions:
        return Missing(error_name(topic.error_code), topic.error_code)
    return sorted(p.partition_index for p in topic.partitions if p.leader_id < 0)
