"""The rules that make a principal of the name in a certificate."""

from __future__ import annotations

import pytest

from fencepost.base import patterns
from fencepost.base.failures import ConfigError, WireError
from fencepost.broker.security.mapping_rules import parse_rules, principal_name


# The cases of Kafka's SslPrincipalMapperTest.
@pytest.mark.parametrize(
    ("rules", "name", "expected"),
    [
        ("DEFAULT", "CN=Duke,OU=S,O=Org,C=US", "CN=Duke,OU=S,O=Org,C=US"),
        ("", "CN=Duke", "CN=Duke"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "CN=Duke,OU=ServiceUsers,O=Org", "Duke"),
        ("RULE:^CN=(.*?),OU=S(.*?),O=(.*?)$/$1@$2/L", "CN=Duke,OU=SME,O=Org", "duke@me"),
        ("RULE:^cn=(.*?)$/$1/U , DEFAULT", "cn=duke", "DUKE"),
        ("RULE:^CN=(.*?)$/$1/, RULE:^OU=(.*?)$/$1/", "OU=sales", "sales"),
        ("RULE:^CN=(.*?)$/$1/L", "OU=sales", None),
        ("RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,DEFAULT", "O=x,CN=Kafka1,C=y", "kafka1"),
        ("RULE:^CN=((\\\\, *|\\w)+)(,.*|$)/$1/,DEFAULT", "CN=Tkac\\, Adam,OU=ITZ", "Tkac\\, Adam"),
        # A group that does not exist is text; so is an escaped dollar.
        ("RULE:^CN=(.*?)$/$1.$5\\$1/", "CN=a", "a.$5$1"),
        # The longest number that is a group.
        ("RULE:^CN=(.*?)$/$12/", "CN=a", "a2"),
        # The pattern must match the whole name.
        ("RULE:CN=a/b/", "CN=ab", None),
    ],
)
def test_the_first_rule_that_matches_decides(rules: str, name: str, expected: str | None) -> None:
    assert principal_name(parse_rules("rules", rules), name) == expected


@pytest.mark.parametrize(
    "rules",
    ["nonsense", "RULE:a/b", "RULE:a/b/X", "RULE:(/x/", "RULE:a/b/L RULE:c/d/", "DEFAULT/L"],
)
def test_a_rule_that_cannot_be_read_is_refused(rules: str) -> None:
    with pytest.raises(ConfigError, match=r"ssl\.principal\.mapping\.rules"):
        parse_rules("ssl.principal.mapping.rules", rules)


EXAMPLE = "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L"
"""From the documentation of Apache Kafka."""


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        (EXAMPLE, ("CN=" + ",OU=" * 103 + ",O=" * 103 + ",L=" * 103 + ",ST=" * 103)[:1444]),
        (r"RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*,$/$1/", "cn" * 2_000),
        ("RULE:(a|a?)+b/x/", "a" * 4_000),
        ("RULE:(a*)*(b|$)/x/", "a" * 4_000 + "c"),
    ],
)
def test_no_name_stalls_the_broker(rule: str, name: str) -> None:
    """Java and Python need half a minute for the first: the test's timeout would tell."""
    assert principal_name(parse_rules("rules", f"{rule},DEFAULT"), name) == name


@pytest.mark.parametrize("end", "\n\r\x85\u2028\u2029")
def test_a_dot_matches_no_end_of_a_line_as_in_java(end: str) -> None:
    name = f"CN=alice{end}x"
    assert principal_name(parse_rules("rules", "RULE:CN=(.*)/$1/,DEFAULT"), name) == name
    rules = parse_rules("rules", r"RULE:CN=([^.\.]*)\Q\E/$1/")
    assert principal_name(rules, name) == f"alice{end}x"


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        (r"CN=\Qa.b\E", "CN=a.b", "x"),
        (r"CN=\Qa.b\E", "CN=axb", None),
        (r"CN=a\.b", "CN=axb", None),
        (r"CN=[.]", "CN=a", None),
        (r"CN=[^]].", "CN=ab", "x"),
        (r"CN=\w", "CN=é", None),
        (r"CN=\s[\s]", "CN=\x0b\x0b", "x"),
        (r"CN=\S", "CN=\x0b", None),
        (r"CN=(?:a|b)(?<n>c)", "CN=bc", "x"),
    ],
)
def test_a_pattern_means_what_it_means_in_java(
    pattern: str, name: str, expected: str | None
) -> None:
    assert principal_name(parse_rules("rules", f"RULE:{pattern}/x/"), name) == expected


@pytest.mark.parametrize(
    "rule",
    [
        "RULE:(?=CN)CN=a/x/",
        "RULE:(?<!a)CN=a/x/",
        "RULE:(?i)cn=a/x/",
        "RULE:(?s:.)/x/",
        "RULE:(?U)CN=.*/x/",
        r"RULE:(a)\1/x/",
        "RULE:a++/x/",
        "RULE:[a-z&&[^b]]/x/",
        "RULE:[a[b]]/x/",
        r"RULE:[\Qa\E]/x/",
        r"RULE:[\S]/x/",
        r"RULE:\v/x/",
        r"RULE:CN=\bal.*/x/",
        r"RULE:\0101/x/",
        r"RULE:\p{Lower}/x/",
        "RULE:(?<n>a)/${n}/",
    ],
)
def test_what_re2_has_not_or_reads_otherwise_is_refused_at_the_start(rule: str) -> None:
    with pytest.raises(ConfigError, match=r"rules has the rule 'RULE:.*', which cannot be used: "):
        parse_rules("rules", f"DEFAULT, {rule}L")


def test_a_rule_that_leaves_nothing_of_a_name_lets_nobody_in() -> None:
    with pytest.raises(WireError, match="leaves nothing of its name"):
        principal_name(parse_rules("rules", "RULE:^CN=(.*?)$/$1/, DEFAULT"), "CN=")


def test_rules_without_the_library_are_refused_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(patterns, "is_available", lambda: False)
    assert principal_name(parse_rules("rules", "DEFAULT"), "CN=a") == "CN=a"
    with pytest.raises(ConfigError, match=r"pip install 'fencepost\[re2\]'"):
        parse_rules("rules", "RULE:CN=(.*)/$1/, DEFAULT")
