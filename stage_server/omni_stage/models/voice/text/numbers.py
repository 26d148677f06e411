"""Writes numbers, amounts, times, abbreviations and signs of English text as words. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

_SMALL: Final = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
).split()
_TENS: Final = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()
_SCALES: Final = ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"), (1000, "thousand"), (100, "hundred"))
_LONGEST: Final = 15
"""Digits of the longest number that is read as a whole. Longer ones, such as card numbers, are read digit by digit."""
_ORDINALS: Final = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
_ABBREVIATIONS: Final = {
    "mr.": "mister",
    "mrs.": "missus",
    "ms.": "miz",
    "dr.": "doctor",
    "prof.": "professor",
    "st.": "saint",
    "jr.": "junior",
    "sr.": "senior",
    "vs.": "versus",
    "etc.": "et cetera",
    "e.g.": "for example",
    "i.e.": "that is",
    "approx.": "approximately",
    "dept.": "department",
    "fig.": "figure",
    "inc.": "incorporated",
    "ltd.": "limited",
    "co.": "company",
    "vol.": "volume",
    "gen.": "general",
    "gov.": "governor",
    "sen.": "senator",
    "rep.": "representative",
    "capt.": "captain",
    "sgt.": "sergeant",
    "lt.": "lieutenant",
}
_UNITS: Final = {
    "km": "kilometer",
    "cm": "centimeter",
    "mm": "millimeter",
    "m": "meter",
    "kg": "kilogram",
    "g": "gram",
    "mg": "milligram",
    "lb": "pound",
    "lbs": "pound",
    "oz": "ounce",
    "ft": "foot",
    "mph": "mile per hour",
    "km/h": "kilometer per hour",
    "ms": "millisecond",
    "s": "second",
    "h": "hour",
    "min": "minute",
    "kb": "kilobyte",
    "mb": "megabyte",
    "gb": "gigabyte",
    "tb": "terabyte",
    "hz": "hertz",
    "khz": "kilohertz",
    "mhz": "megahertz",
    "ghz": "gigahertz",
    "°c": "degree Celsius",
    "°f": "degree Fahrenheit",
    "°": "degree",
}
_PLURALS: Final = {"foot": "feet", "hertz": "hertz"}
_CURRENCIES: Final = {
    "$": ("dollar", "dollars", "cent", "cents"),
    "€": ("euro", "euros", "cent", "cents"),
    "£": ("pound", "pounds", "penny", "pence"),
    "¥": ("yen", "yen", "", ""),
}
_SIGNS: Final = {
    "&": " and ",
    "+": " plus ",
    "=": " equals ",
    "@": " at ",
    "%": " percent ",
    "#": " number ",
    "°": " degrees ",
    "×": " times ",
    "÷": " divided by ",
    "<": " less than ",
    ">": " greater than ",
    "…": ".",
    "—": ", ",
    "–": ", ",
    "’": "'",
    "‘": "'",
    "“": '"',
    "”": '"',
    "/": " slash ",
}
_NUMBER: Final = r"\d{1,3}(?:,\d{3})+|\d+"
_UNIT: Final = "|".join(re.escape(unit) for unit in sorted(_UNITS, key=len, reverse=True))
_SCALE: Final = r"thousand|million|billion|trillion"


def normalize(text: str) -> str:
    """Returns English text with everything that is not a word or a mark of punctuation written as words."""
    for pattern, write in _PATTERNS:
        text = pattern.sub(write, text)
    for sign, word in _SIGNS.items():
        if sign in text:
            text = text.replace(sign, word)
    return " ".join(text.split())


def cardinal(number: int) -> str:
    """Returns a number from 0 on in words, as in "one hundred and five" without the "and"."""
    if number < 20:
        return _SMALL[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return _TENS[tens] + (f" {_SMALL[ones]}" if ones else "")
    scale, name = next((scale, name) for scale, name in _SCALES if number >= scale)
    count, rest = divmod(number, scale)
    return f"{cardinal(count)} {name}" + (f" {cardinal(rest)}" if rest else "")


def ordinal(number: int) -> str:
    """Returns a number from 0 on as a rank, as in "twenty first"."""
    before, _, last = cardinal(number).rpartition(" ")
    regular = f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th"
    last = _ORDINALS.get(last, regular)
    return f"{before} {last}".strip()


def _read(digits: str) -> str:
    """Returns the number in words; digit by digit if it is long or begins with a zero."""
    digits = digits.replace(",", "")
    if len(digits) > _LONGEST or (len(digits) > 1 and digits[0] == "0"):
        return _spell(digits)
    return cardinal(int(digits))


def _spell(digits: str) -> str:
    return " ".join(_SMALL[int(digit)] for digit in digits)


def _amount(match: re.Match[str]) -> str:
    one, many, small, smalls = _CURRENCIES[match["sign"]]
    whole, cents, scale = match["whole"], match["cents"], match["scale"]
    if scale:
        fraction = f" point {_spell(cents)}" if cents else ""
        return f"{_read(whole)}{fraction} {scale} {many}"
    words = f"{_read(whole)} {one if whole == '1' else many}"
    if cents and small and len(cents) == 2:
        pennies = int(cents)
        return words if not pennies else f"{words} and {cardinal(pennies)} {small if pennies == 1 else smalls}"
    return f"{_read(whole)} point {_spell(cents)} {many}" if cents else words


def _measure(match: re.Match[str]) -> str:
    number, unit = match["number"], _UNITS[match["unit"].lower()]
    if number != "1":
        first, _, rest = unit.partition(" ")
        unit = f"{_PLURALS.get(first, first + 's')} {rest}".strip()
    return f"{number} {unit}"


def _time(match: re.Match[str]) -> str:
    hour, minute = int(match["hour"]), int(match["minute"])
    if minute == 0:
        return cardinal(hour) + ("" if match["half"] else " o'clock")
    return f"{cardinal(hour)} {'oh ' if minute < 10 else ''}{cardinal(minute)}"


def _year(match: re.Match[str]) -> str:
    century, rest = divmod(int(match[0]), 100)
    if rest == 0:
        return f"{cardinal(century)} hundred" if century % 10 else f"{cardinal(century // 10)} thousand"
    if century == 20 and rest < 10:
        return f"two thousand {cardinal(rest)}"
    return f"{cardinal(century)} {'oh ' if rest < 10 else ''}{cardinal(rest)}"


def _decimal(match: re.Match[str]) -> str:
    return f"{_read(match['whole'])} point {_spell(match['fraction'])}"


def _half_of_day(match: re.Match[str]) -> str:
    return f"{match[1]} {match[2].lower()} m"


def _abbreviation(match: re.Match[str]) -> str:
    return _ABBREVIATIONS[match[0].lower()]


_PATTERNS: Final[tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...]] = (
    (re.compile(rf"\b(?:{'|'.join(re.escape(word) for word in _ABBREVIATIONS)})(?!\w)", re.I), _abbreviation),
    (re.compile(r"\bno\. ?(?=\d)", re.I), "number "),
    (re.compile(r"https?://(?:www\.)?|\bwww\."), ""),
    (re.compile(r"(?<=[A-Za-z0-9])\.(?=(?:com|org|net|io|ai|dev|edu|gov)\b)"), " dot "),
    (
        re.compile(rf"(?P<sign>[$€£¥])(?P<whole>{_NUMBER})(?:\.(?P<cents>\d+))?(?: (?P<scale>{_SCALE})\b)?"),
        _amount,
    ),
    (re.compile(r"(\d) ?([ap])\.?m\b\.?", re.I), _half_of_day),
    (
        re.compile(r"\b(?P<hour>[01]?\d|2[0-3]):(?P<minute>[0-5]\d)\b(?P<half> [ap] m)?"),
        lambda m: _time(m) + (m["half"] or ""),
    ),
    (re.compile(r"(?<![\w.,])-(?=\d)"), "minus "),
    (re.compile(rf"(?P<number>(?:{_NUMBER})(?:\.\d+)?) ?(?P<unit>{_UNIT})(?![\w/])", re.I), _measure),
    (re.compile(rf"(?P<whole>{_NUMBER})\.(?P<fraction>\d+)(?!\.?\d)"), _decimal),
    (re.compile(r"\b(\d{1,6})(?:st|nd|rd|th)\b", re.I), lambda m: ordinal(int(m[1]))),
    (re.compile(r"(?<=\d)[–—-](?=\d)"), " to "),
    (re.compile(r"(?<![\d,])\b(?:1[1-9]\d\d|20\d\d)\b(?![,]\d)"), _year),
    (re.compile(_NUMBER), lambda m: f" {_read(m[0])} "),
)
