"""What a request is about: the transactional ids, groups and topics that it names.

Fields are found by their names, which are the same in all of Kafka's messages but for a few. Topics
may be named by id (KIP-516). Requests are in their newest shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from fencepost.wire.forms.describe_groups import DescribeGroupsRequest
from fencepost.wire.forms.find_coordinator import FindCoordinatorRequest
from fencepost.wire.schema import Form

TopicName = Callable[[bytes], str | None]
"""The name of the topic with an id, if it is known."""

_TRANSACTIONAL_IDS: Final = frozenset({"transactional_id", "transactional_ids"})
_GROUPS: Final = frozenset({"group_id", "group_ids", "groups_names"})
_TOPICS: Final = frozenset({"topic", "topics", "topic_data", "forgotten_topics_data"})
"""Fields whose text, or whose items' `name`, is that of a topic."""
_TOPIC_TYPE: Final = 2
"""The resource type of topics, in requests about settings."""
_GROUP_KEY: Final = 0
"""The key type of groups in FindCoordinator; 1 is a transactional id."""


def is_about(
    request: object,
    topic_name: TopicName,
    *,
    transactional_id: str | None = None,
    group: str | None = None,
    topic: str | None = None,
) -> bool:
    """Whether a request names all that are given."""
    return (
        (transactional_id is None or transactional_id in transactional_ids_of(request))
        and (group is None or group in groups_of(request))
        and (topic is None or topic in topics_of(request, topic_name))
    )


def transactional_ids_of(request: object) -> set[str]:
    """The transactional ids that a request names."""
    if isinstance(request, FindCoordinatorRequest):
        return set() if request.key_type == _GROUP_KEY else set(request.coordinator_keys)
    return {text for name, text in _texts(request) if name in _TRANSACTIONAL_IDS}


def groups_of(request: object) -> set[str]:
    """The group ids that a request names."""
    if isinstance(request, FindCoordinatorRequest):
        return set(request.coordinator_keys) if request.key_type == _GROUP_KEY else set()
    if isinstance(request, DescribeGroupsRequest):
        return set(request.groups)
    return {text for name, text in _texts(request) if name in _GROUPS}


def topics_of(request: object, topic_name: TopicName) -> set[str]:
    """The topics that a request names."""
    found: set[str] = set()
    for name, form in _forms(request, ""):
        if getattr(form, "resource_type", None) == _TOPIC_TYPE:
            found.add(form.resource_name)
        for text in (getattr(form, "topic", None), getattr(form, "name", None)):
            if isinstance(text, str) and text and (name in _TOPICS or hasattr(form, "topic")):
                found.add(text)
        known = topic_name(getattr(form, "topic_id", b""))
        if known is not None:
            found.add(known)
    return found


def _forms(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """A form and all forms in it, each with the name of its field."""
    if isinstance(value, Form):
        yield name, value
        for field in value.form_fields:
            yield from _forms(getattr(value, field.name), field.name)
    elif isinstance(value, list):
        for each in value:
            yield from _forms(each, name)


def _texts(request: object) -> Iterator[tuple[str, str]]:
    """All texts of a request, each with the name of its field."""
    for _, form in _forms(request, ""):
        for field in form.form_fields:
            value = getattr(form, field.name)
            for each in value if isinstance(value, list) else (value,):
                if isinstance(each, str):
                    yield field.name, each
