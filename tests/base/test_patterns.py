"""Patterns of transactional ids follow RE2, and cannot stall the broker.

How they compare with Kafka's RE2/J is in tests/compat/twin/test_transaction_views.py.
"""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.base.patterns import compile_pattern


def matches(pattern: str, text: str) -> bool:
    return compile_pattern(pattern).fullmatch(text) is not None


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("refunds-[0-9]+", "refunds-12", "refunds-12-b"),
        ("refunds|orders", "orders", "orders-1"),
        ("", "", "a"),
        (r"\p{Lu}\P{Lu}", "Ab", "AB"),
        (r"\p{Greek}+", "λ", "l"),
        ("[[:^alpha:]_]", "1", "a"),
        (r"\Qa.b*\E+", "a.b**", "axb"),
        (r"a\z", "a", "a\n"),
        ("a$", "a", "a\n"),
        ("(?<n>a)(?P<m>b)", "ab", "a"),
        ("(?i:a)b", "Ab", "AB"),
        (".", "é", "\n"),
        ("(?s).", "\n", ""),
        ("a{,2}", "a{,2}", "aa"),
        (r"[a*+]{1}(?:\x61)", "+a", "ba"),
        ("(?U)(?im)a", "A", "b"),
    ],
)
def test_a_pattern_in_re2_syntax_matches_whole_ids(pattern: str, yes: str, no: str) -> None:
    assert matches(pattern, yes)
    assert not matches(pattern, no)


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            "(",
            ")",
            "[",
            "[]",
            "*",
            "a**",
            "a++",
            "a*+",
            "a?+",
            "a{1}+",
            "a{1}{2}",
            "{2}",
            "a{1001}",
            "a{1,1001}",
            "a{2,1}",
            "\\",
        ),
        *("(?=a)", "(?!a)", "(?<=a)", "(?>a)", "(?x)a", "(?#a)", "(?(1)a|b)", "(?P=n)", "(?i-)a"),
        *(r"(a)\1", r"\Z", r"\h", r"\k<n>", r"\x{110000}", "[[:nobody:]]", "[b-a]", r"\pX"),
    ],
)
def test_a_pattern_that_re2_does_not_support_is_rejected(
    pattern: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError):
        compile_pattern(pattern)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "(a*)*b", "(.*)*b", "(a?){30}a{30}b"])
def test_no_pattern_stalls_the_broker(pattern: str) -> None:
    """Python's `re` would not finish any of these."""
    started = time.process_time()
    assert not matches(pattern, "a" * 2_000)
    assert matches(pattern, "a" * 30 + "b")
    assert time.process_time() - started < 30


@pytest.mark.parametrize("pattern", ["((a{100}){100}){100}", "(" * 10_000, "a" * 100_000])
def test_a_pattern_that_is_too_large_is_rejected(pattern: str) -> None:
    with pytest.raises(ValueError):
        compile_pattern(pattern)


@given(st.text(max_size=20) | st.text(r"ab[](){}*+?|^$\.-:1,<>PpQEisU=!", max_size=12), st.text())
def test_any_text_compiles_or_is_rejected(pattern: str, text: str) -> None:
    try:
        compiled = compile_pattern(pattern)
    except ValueError:
        return
    compiled.fullmatch(text)
