"""English text to IPA as Piper's English voices read it: the CMU Pronouncing Dictionary, then rules.

The dictionary is text in the format of cmudict.dict, BSD-licensed. Its stress digits are kept. A word that it lacks is
tried without its ending, then as a compound of two words; then text/letters.py guesses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from omni_stage.errors import ConfigurationError
from omni_stage.models.voice.text.letters import guess_phones
from omni_stage.models.voice.text.numbers import normalize

_CONSONANTS: Final = {
    "B": "b", "CH": "tʃ", "D": "d", "DH": "ð", "F": "f", "G": "ɡ", "HH": "h", "JH": "dʒ", "K": "k", "L": "l", "M": "m",
    "N": "n", "NG": "ŋ", "P": "p", "R": "ɹ", "S": "s", "SH": "ʃ", "T": "t", "TH": "θ", "V": "v", "W": "w", "Y": "j",
    "Z": "z", "ZH": "ʒ",
}  # fmt: skip
_VOWELS: Final = {
    "AA": "ɑː", "AE": "æ", "AH": "ʌ", "AO": "ɔː", "AW": "aʊ", "AY": "aɪ", "EH": "ɛ", "ER": "ɜː", "EY": "eɪ", "IH": "ɪ",
    "IY": "iː", "OW": "oʊ", "OY": "ɔɪ", "UH": "ʊ", "UW": "uː",
}  # fmt: skip
_UNSTRESSED: Final = {"AH": "ə", "ER": "ɚ", "IY": "i"}
_MARKS: Final = {"1": "ˈ", "2": "ˌ", "0": ""}
_WEAK: Final = {
    "a": "ɐ", "an": "ɐn", "and": "ænd", "are": "ɑːɹ", "as": "æz", "at": "æt", "be": "biː", "but": "bʌt", "by": "baɪ",
    "can": "kæn", "for": "fɔːɹ", "from": "fɹʌm", "had": "hæd", "has": "hɐz", "have": "hæv", "he": "hiː", "her": "hɜː",
    "his": "hɪz", "i": "aɪ", "if": "ɪf", "in": "ɪn", "is": "ɪz", "it": "ɪt", "its": "ɪts", "my": "maɪ", "of": "ʌv",
    "on": "ɔn", "or": "ɔːɹ", "our": "aʊɚ", "she": "ʃiː", "that": "ðæt", "the": "ðə", "their": "ðɛɹ", "them": "ðɛm",
    "they": "ðeɪ", "this": "ðɪs", "to": "tə", "was": "wʌz", "we": "wiː", "were": "wɜː", "will": "wɪl", "with": "wɪð",
    "would": "wʊd", "you": "juː", "your": "jʊɹ",
}  # fmt: skip
"""Words without stress inside a sentence."""
_BEFORE_VOWELS: Final = {"the": "ðɪ", "to": "tʊ"}
_LETTERS: Final = dict(
    zip(
        "abcdefghijklmnopqrstuvwxyz",
        "EY1|B_IY1|S_IY1|D_IY1|IY1|EH1_F|JH_IY1|EY1_CH|AY1|JH_EY1|K_EY1|EH1_L|EH1_M|EH1_N|OW1|P_IY1|K_Y_UW1|AA1_R|"
        "EH1_S|T_IY1|Y_UW1|V_IY1|D_AH1_B_AH0_L_Y_UW0|EH1_K_S|W_AY1|Z_IY1".split("|"),
        strict=True,
    )
)
_TOKEN: Final = re.compile(r"[A-Za-zÀ-ÖØ-öø-ÿ]+(?:'[A-Za-z]+)*'?|[.,;:?!()\"-]")
_INITIALS: Final = re.compile(r"\b(?:[A-Za-z]\.){2,}")
_NO_VOWEL: Final = re.compile(r"[^aeiouy]+\Z", re.I)
_MAX_SPELLED: Final = 5
"""Upper-case words of at most this many letters that the dictionary lacks are spelled."""
_FOLDED: Final = str.maketrans("àáâãäåçèéêëìíîïñòóôõöøùúûüýÿ", "aaaaaaceeeeiiiinoooooouuuuyy")
_SIBILANTS: Final = ("S", "Z", "SH", "ZH", "CH", "JH")
_VOICELESS: Final = ("P", "T", "K", "F", "TH")


_CORRECTIONS: Final = {"thirty": "TH ER1 T IY0"}
"""Words whose first pronunciation in the dictionary is the rarer one."""


class English:
    """Turns English text into IPA. Safe to use from several threads."""

    def __init__(self, dictionary: Mapping[str, str]) -> None:
        """`dictionary`: ARPAbet with stress digits, separated by spaces, by lower-case word."""
        self._dictionary = dictionary

    @classmethod
    def load(cls, file: Path) -> English:
        """Read a dictionary. Raises ConfigurationError."""
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"cannot read the dictionary {file}", field="model.path") from error
        return cls(read_dictionary(text))

    def __call__(self, text: str) -> str:
        """Returns the IPA of a sentence: words separated by spaces, with the marks of punctuation that voices read."""
        text = _INITIALS.sub(lambda match: f"{match[0].replace('.', ' ')} ", text)
        tokens = _TOKEN.findall(normalize(text))
        written = ""
        for index, token in enumerate(tokens):
            if not token[0].isalpha():
                # Quotes, brackets and hyphens inside words are silent; a voice may read them as a pause.
                written += token if token in ".,;:?!" and written else ""
                continue
            following = tokens[index + 1] if index + 1 < len(tokens) else "."
            spoken = self._speak(token, following)
            written += f" {spoken}" if written else spoken
        return written

    def _speak(self, token: str, following: str) -> str:
        word = _fold(token)
        is_last = not following[0].isalpha()
        if word in _WEAK and not is_last and token != "US":
            return _BEFORE_VOWELS[word] if word in _BEFORE_VOWELS and self._opens(following) else _WEAK[word]
        return to_ipa(self._phones_of(token))

    def _opens(self, token: str) -> bool:
        """Returns whether a word begins with a vowel."""
        phones = self._phones_of(token)
        return bool(phones) and phones[0][-1].isdigit()

    def _phones_of(self, token: str) -> list[str]:
        word = _fold(token)
        if len(word) == 1 and word not in ("a", "i"):
            return _LETTERS[word].split("_") if word in _LETTERS else []
        return self.phones(word, is_upper=token.isupper())

    def phones(self, word: str, *, is_upper: bool = False) -> list[str]:
        """Returns ARPAbet with stress digits for a lower-case word."""
        known = self._look_up(word) or self._without_ending(word)
        if known:
            return known
        if (is_upper and len(word) <= _MAX_SPELLED) or (_NO_VOWEL.match(word) and "'" not in word):
            return [phone for letter in word for phone in _LETTERS.get(letter, "").split("_") if phone]
        return self._as_compound(word) or guess_phones(word.replace("'", ""))

    def _look_up(self, word: str) -> list[str]:
        return (_CORRECTIONS.get(word) or self._dictionary.get(word, "")).split()

    def _without_ending(self, word: str) -> list[str]:
        """Returns the phones of a known word with a regular ending; empty if there is none."""
        stem, _, ending = word.rpartition("'")
        if stem and ending == "s":
            return _add_s(self._look_up(stem) or self.phones(stem))
        for ending, stems in (
            ("s", (word[:-1], f"{word[:-3]}y" if word.endswith("ies") else word[:-2])),
            ("ed", (word[:-2], word[:-1], word[:-3])),
            ("ing", (word[:-3], f"{word[:-3]}e", word[:-4])),
            ("ly", (word[:-2],)),
        ):
            if not word.endswith(ending):
                continue
            found = next((phones for stem in stems if len(stem) > 2 and (phones := self._look_up(stem))), [])
            if found:
                return {"s": _add_s, "ed": _add_ed}.get(ending, lambda s, e=ending: [*s, *_ENDINGS[e]])(found)
        return []

    def _as_compound(self, word: str) -> list[str]:
        """Returns the phones of two known words that make the word; empty if there are none."""
        for place in range(len(word) - 3, 2, -1):
            first, second = self._look_up(word[:place]), self._look_up(word[place:])
            if first and second:
                return [*first, *(phone.replace("1", "2") for phone in second)]
        return []


def _fold(token: str) -> str:
    return token.lower().translate(_FOLDED).strip("'")


_ENDINGS: Final = {"ing": ("IH0", "NG"), "ly": ("L", "IY0")}


def _add_s(phones: Sequence[str]) -> list[str]:
    if not phones:
        return []
    if phones[-1] in _SIBILANTS:
        return [*phones, "IH0", "Z"]
    return [*phones, "S" if phones[-1] in _VOICELESS else "Z"]


def _add_ed(phones: Sequence[str]) -> list[str]:
    if phones[-1] in ("T", "D"):
        return [*phones, "IH0", "D"]
    return [*phones, "T" if phones[-1] in (*_VOICELESS, "S", "SH", "CH") else "D"]


def to_ipa(phones: Sequence[str]) -> str:
    """Returns the IPA of one word's ARPAbet, with the marks of stress before the vowels, as espeak-ng writes it."""
    vowels = sum(phone[-1].isdigit() for phone in phones)
    written = ""
    for index, phone in enumerate(phones):
        name, stress = phone.rstrip("012"), phone[-1]
        if name in _CONSONANTS:
            written += "ɾ" if name in ("T", "D") and _is_flap(phones, index, name) else _CONSONANTS[name]
            continue
        if stress == "0" and vowels > 1:
            written += _UNSTRESSED.get(name, _VOWELS[name])
        else:
            written += _MARKS.get(stress, "") + _VOWELS[name]
    return written


def _is_flap(phones: Sequence[str], index: int, name: str) -> bool:
    """Returns whether a t stands between a vowel and an unstressed vowel, as in butter."""
    if name != "T" or index == 0 or index + 1 == len(phones):
        return False
    before, after = phones[index - 1], phones[index + 1]
    return (before[-1].isdigit() or before == "R") and after.endswith("0")


def read_dictionary(text: str) -> dict[str, str]:
    """Returns a dictionary in the format of cmudict.dict; the first pronunciation of every word."""
    words: dict[str, str] = {}
    for line in text.splitlines():
        word, _, phones = line.partition("#")[0].strip().partition(" ")
        if phones and "(" not in word and not word.startswith(";"):
            words.setdefault(word.lower(), phones.strip())
    return words
