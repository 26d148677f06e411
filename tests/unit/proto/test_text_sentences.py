"""Where a text to speak is cut into sentences."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from omni_proto.text import split_sentences
from support.tables import each_row

ODD = " .!?…\n\r,;:\"'”)(「」。！？、abAB12５．😀👍🏽🇩🇪\u200d\ufe0fเก่ำक्षि한국"
TEXTS = st.text(st.one_of(st.sampled_from(ODD), st.characters(exclude_categories=["Cs"])), max_size=100)

# Each case is a text, cut at the bars.
CASES = {
    "marks": "Stop! |Who is there? |It is me.",
    "runs of marks": "Really?! |No!!! |Well.",
    "titles": "Dr. Smith met Mrs. Jones and Prof. Lee. |They talked.",
    "initials": "J. R. R. Tolkien wrote it. |So did C. S. Lewis.",
    "a pronoun that looks like an initial": "It was you and I. |Did you know?",
    "abbreviations": "Apples, pears, etc. are fruit, e.g. for cakes, i.e. sweet ones. |Good.",
    "an abbreviation at the end": "He works for Acme Inc. |She does not.",
    "a.m. and p.m.": "Come at 5 p.m. on Monday. |It ends at 6 p.m. |Then we go.",
    "states": "The U.S. Senate sits in the U.S. |It votes.",
    "decimals": "Pi is 3.14 and not 3.15. |Costs fell by 2.5 %.",
    "numbers at the end": "It happened in 1984. |Nobody knew.",
    "amounts": "She paid $100.00. |It was enough.",
    "versions and files": "Open setup.py of v2.0.1 first. |Then run it.",
    "addresses": "See https://example.com/a.b?c=d. |Write to jane.doe@example.com. |Thanks.",
    "page numbers": "Look at p. 55 and Fig. 3 of vol. 2. |Then at No. 7.",
    "names with marks": "She works at Yahoo! in sales. |He left.",
    "a quotation inside": 'He said, "Come here." and left. |She stayed.',
    "a quotation at the end": 'He said, "Come here." |She came.',
    "typographic quotes": "“Wait.” |“Why?” |Nobody said.",
    "brackets": "It works (see the docs.) in most cases. |Try it.",
    "an ellipsis inside": "I was ... well, tired. |And you?",
    "an ellipsis at the end": "I never meant that... |She left.",
    "the ellipsis mark": "Hm… |Let us see.",
    "emoji after a mark": "Great! 😀 |Next one. 👍🏽 |Done.",
    "lower case only": "hi there. how are you? fine, thanks.".replace(". ", ". |").replace("? ", "? |"),
    "Chinese": "你好。|你叫什么名字？|我叫小明！|再见。",
    "Japanese": "これはペンです。|それは何ですか？|すごい！",
    "Japanese speech goes on": "彼は「行こう。」と言った。|私は黙っていた。",
    "Chinese quotes": "他说：“走吧。”|我们走了。",
    "Hindi": "यह एक किताब है। |वह पढ़ता है।",
    "Arabic": "كيف حالك؟ |أنا بخير.",
    "Thai has no marks": "สวัสดีครับ ผมชื่อสมชาย",
    "Greek": "Πού είσαι; Εδώ είμαι. |Καλά.",
    "German dates": "Am 3. Oktober 1990 war es so weit. |Alle feierten.",
    "French": "M. Dupont est là. |Il attend.".replace("M. ", "Mme. "),
    "wrapped lines": "This line\nis wrapped. |And this\none too.",
    "paragraphs": "A heading\n\n|The first paragraph\n\n\n|The second",
    "a list": "You need:\n|- flour\n|- eggs\n|- milk\n|Mix it.",
    "a numbered list": "1. Take flour.\n|2. Add eggs.\n|3. Mix.",
    "a list inside a line": "1. Take flour. |2. Add eggs. |3. Mix.",
    "Windows line ends": "One.\r\n\r\n|Two.",
    "spaces only": " \n ",
    "nothing": "",
    "one word": "Hello",
}


@each_row("cut", CASES.values(), ids=CASES)
def test_sentences(cut: str) -> None:
    assert split_sentences(cut.replace("|", "")) == [piece for piece in cut.split("|") if piece]


@given(TEXTS)
def test_nothing_is_lost(text: str) -> None:
    sentences = split_sentences(text)
    assert "".join(sentences) == text
    assert all(sentences)


@pytest.mark.parametrize("piece", [". ", "\n ", "1. ", '!" ', "! 😀 ", ")", "U.S. ", "a", " ", "..."])
def test_long_texts_take_no_more_than_their_length(piece: str) -> None:
    """A text that repeats a mark is cut as one that does not: the work grows with the length, not its square."""
    text = piece * 20_000
    assert "".join(split_sentences(text)) == text
