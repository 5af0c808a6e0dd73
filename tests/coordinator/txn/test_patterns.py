"""Patterns of ids: Python's own `re` is the oracle where the two syntaxes agree, RE2's documentation where they do not."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.coordinator.txn import patterns
from fencepost.coordinator.txn.pattern_parser import compile_pattern
from fencepost.coordinator.txn.patterns import PatternError


def matches(pattern: str, text: str) -> bool:
    return compile_pattern(pattern).fullmatch(text)


# -- against the oracle
# ---------------------------------------------------------------------------------------

atoms = st.sampled_from(
    [
        "a",
        "b",
        "-",
        ".",
        "[ab]",
        "[^a]",
        "[a-c_]",
        r"\d",
        r"\w",
        r"\W",
        r"[\w-]",
        "^",
        "$",
        r"\b",
        r"\B",
    ]
)
repetitions = st.sampled_from(["", "", "", "*", "+", "?", "*?", "{2}", "{1,2}", "{0,1}", "{1,}"])


def combine(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    groups = st.builds("({}){}".format, inner, repetitions) | st.builds("(?i:{})".format, inner)
    return (
        groups
        | st.lists(inner, min_size=2, max_size=3).map("".join)
        | st.lists(inner, min_size=2, max_size=3).map("|".join)
    )


consuming = atoms.filter(lambda atom: atom not in ("^", "$", r"\b", r"\B"))
expressions = st.recursive(
    st.builds("{}{}".format, consuming, repetitions) | atoms, combine, max_leaves=6
)


@given(expressions, st.lists(st.text("abAB-_1\n", min_size=1, max_size=6), max_size=5))
def test_a_pattern_matches_what_it_matches_in_python(pattern: str, texts: list[str]) -> None:
    # Python's $ is also true before a last line's end, RE2's is not.
    oracle = re.compile(pattern.replace("$", r"\Z"), re.ASCII)
    compiled = compile_pattern(pattern)
    for text in texts:
        assert compiled.fullmatch(text) == bool(oracle.fullmatch(text)), text


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [("", True), ("a*", True), ("^$", True), (r"\B", True), (r"\b", False), ("a", False)],
)
def test_the_empty_id(pattern: str, matched: bool) -> None:
    """Python before 3.14 has its own opinion of what is no boundary in nothing."""
    assert matches(pattern, "") == matched


def test_what_is_remembered_is_bounded_and_forgotten_without_harm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(patterns, "MAX_STEPS_REMEMBERED", 3)
    compiled = compile_pattern("(a|b)*c{2}")
    assert [compiled.fullmatch(text) for text in ("abcc", "abc", "cc", "abab")] == [
        True,
        False,
        True,
        False,
    ]
    assert len(compiled._places) <= 4


# -- what RE2 has and Python has not
# --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        (r"\pL+", "añД", "a1"),
        (r"\p{Lu}\P{Lu}", "Ab", "AB"),
        (r"\p{^Lu}", "a", "A"),
        (r"[\pN-]+", "1-2", "a"),
        ("[[:alpha:]]+", "ab", "a1"),
        ("[[:^alpha:]_]", "1", "a"),
        (r"\Qa.b*\E+", "a.b**", "axb"),
        (r"\Qa.b", "a.b", "axb"),
        (r"a\z", "a", "a\n"),
        ("(?U)a+", "aa", ""),
        ("(?<n>a)(?P<m>b)", "ab", "a"),
        ("(?i)[^a]", "b", "A"),
        ("(?i:a)b", "Ab", "AB"),
        ("a(?i)b|c", "C", "AB"),
        ("(?s).", "\n", ""),
        ("(?s-s).", "a", "\n"),
        ("(?m)a$\n^b", "a\nb", "ab"),
        (r"\x61\x{62}\143", "abc", "abd"),
        (r"[\]a\-z]+", "]-", "b"),
        ("[]a]+", "]a", "b"),
        ("[a-]+", "a-", "b"),
        ("a{,2}", "a{,2}", "aa"),
        ("a{", "a{", "a"),
        ("}]", "}]", "a"),
        (r"\_\-", "_-", "a"),
        ("a||b", "", "ab"),
        ("(|a)+", "aa", "b"),
        ("(?)a", "a", ""),
        (r"\ta", "\ta", "ta"),
    ],
)
def test_re2s_own_syntax(pattern: str, yes: str, no: str) -> None:
    assert matches(pattern, yes)
    assert not matches(pattern, no)


@pytest.mark.parametrize(
    "pattern",
    [
        *("(", ")", "[", "[]", "[a", "*", "+a", "?", "|*", "(*)", "a**", "a++", "a*+", "a{1}{2}"),
        *(
            "{2}",
            "a{1001}",
            "a{2,1}",
            "a{1,1001}",
            "a{" + "9" * 5_000 + "}",
            "(?=a)",
            "(?!a)",
            "(?<=a)",
            "(?>a)",
            "(?x)a",
        ),
        *("(?#a)", "(?(1)a|b)", "(?P=n)", "(?<n>a)(?<n>b)", "(?i)*", "(?-)", "(?i-)a", "\\"),
        *(r"(a)\1", r"\Z", r"\C", r"\h", r"\k<n>", r"\x{110000}", r"\xg", "[[:nobody:]]", "[b-a]"),
        *(r"[a-\d]", r"[\b]", r"\p{Greek}", r"\pX", r"\p{Lux}", r"\8"),
    ],
)
def test_what_re2_refuses_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        compile_pattern(pattern)


# -- hostile patterns
# -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "(a*)*b", "(.*)*b", "(a?){30}a{30}b"])
def test_no_pattern_makes_an_id_take_for_ever(pattern: str) -> None:
    """Each of these takes Python's own patterns longer than the universe."""
    started = time.process_time()
    assert not matches(pattern, "a" * 2_000)
    assert matches(pattern, "a" * 30 + "b")
    assert time.process_time() - started < 30


@pytest.mark.parametrize(
    "pattern", ["((a{100}){100}){100}", "(((a{50}){50}){50}){50}", "a" * 3_000, "(" * 10_000]
)
def test_what_would_be_too_large_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        compile_pattern(pattern)


@given(st.text(max_size=20))
def test_whatever_is_sent_is_a_pattern_or_refused(text: str) -> None:
    try:
        compiled = compile_pattern(text)
    except PatternError:
        return
    compiled.fullmatch(text)


special = st.text(r"ab[](){}*+?|^$\.-:1,<>PpQEisU=!", max_size=12)


@given(special, st.text("ab-1", max_size=6))
def test_whatever_is_made_of_special_characters_is_a_pattern_or_refused(
    pattern: str, text: str
) -> None:
    try:
        compiled = compile_pattern(pattern)
    except PatternError:
        return
    compiled.fullmatch(text)
