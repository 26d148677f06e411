"""Which regular expressions are enforced as they stand, and that texts made with them match in Python too."""

from __future__ import annotations

import pytest

from omni_stage.forms.regex import MAX_GROUPS, UnsupportedRegexError, check_regex


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("", ""),
        ("^a|b$", "a|b"),
        (r"\d{4}-\d{2}-\d{2}", r"\d{4}-\d{2}-\d{2}"),
        ("[a-z]{1,64}", "[a-z]{1,64}"),
        (r"(\w+,){1,5}", r"(?:\w+,){1,5}"),
        ("a*?b+?c??", "a*b+c?"),
        ("(?<name>a)(?:b)", "(?:a)(?:b)"),
        (r"[\]\-^a-z.-]\/\u00e9\u{1F600}\x41", r"[\]\-^a-z.-]\/\u00e9\u{1F600}\x41"),
        ("a.b", r"a[^\n\r]b"),
        ("a|", "a|"),
        ('["\\\\\n]', '["\\\\\n]'),
    ],
)
def test_what_is_enforced_is_passed_on(given: str, read: str) -> None:
    assert check_regex(given, in_json=False) == read


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("a^b", "inside the expression"),
        ("(^a)", "inside the expression"),
        ("a$b", "inside the expression"),
        ("(?=a)b", "lookahead"),
        ("^(?=.*[0-9])[a-z]+$", "lookahead"),
        ("(?!a)b", "lookahead"),
        ("(?<=a)b", "lookahead"),
        ("(?i)abc", "flag"),
        ("(?P<n>a)b", "flag"),
        (r"\bfoo\b", "escape"),
        (r"(a)\1", "escape"),
        (r"\p{L}+", "escape"),
        (r"\Aa\Z", "escape"),
        (r"\ud800", "not a character"),
        ("a++", "quantifier after a quantifier"),
        ("a**", "quantifier after a quantifier"),
        ("*a", "repeats or closes nothing"),
        ("a{,3}", "count"),
        ("a{3,1}", "below its minimum"),
        ("a{x}", "count"),
        ("[]a]", "without characters"),
        ("[^]", "without characters"),
        ("[[:alpha:]]", "inside a character class"),
        ("[z-a]", "range"),
        (r"[a-\d]", "range"),
        (r"[^\W]", "inside a character class"),
        ("[a", "not closed"),
        ("(a", "not closed"),
        ("a)", "without an opening one"),
        ("a\\", "escape"),
        ("(" * (MAX_GROUPS + 1) + ")" * (MAX_GROUPS + 1), "groups"),
        ("(" * 60_000, "groups"),
    ],
)
def test_what_is_not_enforced_is_named(given: str, says: str) -> None:
    for in_json in (False, True):
        with pytest.raises(UnsupportedRegexError, match=says):
            check_regex(given, in_json=in_json)


@pytest.mark.parametrize("given", ['a"b', r"a\\b", r"a\nb", '["]x', r"\x1f", r"[\\-\\]"])
def test_a_pattern_holds_nothing_that_json_must_escape(given: str) -> None:
    assert check_regex(given, in_json=False)
    with pytest.raises(UnsupportedRegexError, match="JSON string"):
        check_regex(given, in_json=True)


@pytest.mark.parametrize("given", ['[^"]', r"[^\\]+", "[ -~]{0,4}", r"\s\S\W", "."])
def test_a_pattern_may_hold_classes_from_which_those_characters_are_left_out(given: str) -> None:
    assert check_regex(given, in_json=True)
