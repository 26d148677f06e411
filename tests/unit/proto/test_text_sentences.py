"""Where a text to speak is cut into sentences."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from omni_proto.text import is_spoken, split_sentences
from omni_proto.writing import SentenceCutter, SpokenText
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
    "Greek": "Πού είσαι; |Εδώ είμαι. |Καλά.",
    "German dates": "Am 3. Oktober 1990 war es so weit. |Alle feierten.",
    "French": "M. Dupont est là. |Il attend.".replace("M. ", "Mme. "),
    "dates in numbers": "Am 1. 1. 2024 war es so weit, am 24.12. nicht. |Der 3. 5. 2024 ist frei. |Gut.",
    "words without vowels": "Es dauert 3 Std. Fahrt, d. h. 2 tbsp. Zucker, и др. Книги. |Gut.",
    "capitals without vowels": "I watch TV. |Peter reads. |He has a PC. |So what?",
    "articles with an apostrophe": "C'est l'art. 5 al. 2 du code. |Voir dell'art. 3. |Bien.",
    "pages in other languages": "Véase la pág. 5 y el núm. 3. |Vedi pag. 12 e n. 4. |См. рис. 5 на стр. 7. |Bien.",
    "spaced abbreviations": "Wir i. Allg. Deutschen, z. Hd. Frau Meier, u. dgl. Dinge, vgl. op. cit. Seite. |Gut.",
    "a Spanish country": "Vive en EE. UU. desde 1990 y en EE. UU. Mexicanos. |Bien.",
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


MORE = r"""
Wir essen z. B. Brot und Käse. |Das ist gut.
Das gilt i. d. R. Sonntags nicht.
In der Regel, d. h. Die meiste Zeit, ist es still.
Er lebte 44 v. Chr. Cäsar starb damals.
Das ist u. a. Thema des Buches. |Mehr dazu später.
J. R. R. Tolkien wrote The Hobbit. |He was born in 1892.
J. A. Smith and A. A. Milne met. |They talked.
George R. R. Martin and J. K. Rowling write.
He lives in the U. S. A. today. |She does not.
The U. S. Army came. |Then it left.
Am 3. Oktober ist Feiertag. |Am 4. nicht.
Die 3. Auflage erschien 1999. |Sie war besser.
Der 1. FC Köln hat gewonnen. |Alle freuen sich.
Er wohnt im 2. Stock. |Sie wohnt im 5. Stock links.
Beim 10. Versuch klappte es.
Es war um 15.30 Uhr. |Danach gingen wir.
The train leaves at 5 p.m. on Friday. |Be there.
The train leaves at 5 p. m. on Friday. |Be there.
It costs 3.50 euros. |That is 1.5 times more.
Pi is 3.14159. |It never ends.
Version 2.0.1 is out. |Get it.
Well... maybe. |Or not... |Who knows?
Wait… what did you say? |Nothing… |Really?
她说：“你好。”|我也说你好。|然后我们走了！
「ありがとう。」と彼は言った。|そして帰った。
He said, "Stop!" and left. |"Why?" |Nobody knew.
She asked: “Is it true?” |He nodded.
Er sagte: „Komm her!“ Dann ging er.
See www.example.com/a.b?c=d. for more.
Visit https://example.org. |It is free.
Mail me at a.b@example.org. |Thanks!
Great job! 🎉 |See you soon. 👋🏽 |Bye!
Dr. Smith and Mrs. Jones met Prof. Lee. |They spoke.
See Fig. 3 and Sec. 2.1. |It helps.
M. Dupont est arrivé. |Il parle.
C'est p. ex. le cas ici. |Voilà.
El Sr. García vive en la Av. Central. |Es alto.
¿Qué hora es? |¡Son las tres! |Vale.
Hij komt o. a. uit Utrecht. |Dat is ver.
To je např. Praha. |Je velká.
Ja, bl.a. Stockholm och Malmö. |De är stora.
Это было в 1990 г. Потом всё изменилось.
Он живёт в г. Москва. |Ему 30 лет.
А. С. Пушкин родился в Москве. |Он поэт.
Θα έρθεις αύριο; |Ναι.
यह अच्छा है।|वह भी।
هل أنت بخير؟ |نعم.
Is it plan A or plan B? |B. I think so.
Approx. 5 km. |Max. 3 people, e. g. you.
Das kostet ca. 5 Euro, inkl. MwSt. und Versand.
Sie ist 30. |Er ist 31.
In 2024. |That was late.
Das Spiel ist am 12. Mai um 20 Uhr. |Wir kommen.
Er kam als 2. ins Ziel. |Sie wurde Erste.
Am 24. Dezember und am 1. Weihnachtstag ist zu.
Ich bin am 5. Tag krank geworden. |Schade.
W. A. Mozart und J. S. Bach. |Beide sind tot.
E. T. A. Hoffmann schrieb viel.
T. S. Eliot was a poet. |So was W. H. Auden.
F. D. R. led the country. |He was ill.
The D. C. Circuit ruled. |It was late.
We landed at 6 a. m. and slept. |Then we ate.
z. B. Hunde sind Tiere. |Katzen auch.
Man kann, m. E. Zu Recht, klagen.
S. u. a. Kapitel drei.
Vgl. S. 12 und S. 14. |Dort steht es.
O autor, i. é. Machado, morreu. |Fim.
E' nato nel 300 a. C. a Roma. |Poi morì.
Nació en el 44 a. C. en Roma. |Murió viejo.
EE. UU. es grande. |México también.
Los EE. UU. firmaron. |Luego no.
Sra. Pérez y Ud. son amigos. |Bien.
Jeg bor på 2. sal. |Det er højt.
Dnes je 3. října. |Zítra bude 4. října.
Ma 2024. október 3. van. |Holnap nem.
Спасибо, т. е. большое. |Пока.
Он приехал и т. д. Потом уехал.
今天是3.5度。|明天更冷！|是吗？
3点开始。|「来ますか？」|「はい。」
それは本当ですか？|はい、そうです。
오늘은 좋다. |내일도 좋다!
A. B. C. are letters. |D is too.
Turn to Sec. 4.2. |Read it.
J.R.R. Tolkien and C.S. Lewis. |Both wrote.
The end of WW II. |Peace came.
No. 5 is alive. |No. |Five is dead.
It was 10 a.m. Nobody came.
Yes. |No. |Maybe.
He said: "No. 5 wins." |We clapped.
“Really?” she asked. |“Yes.”
Hm. |Ok. |So?
He moved to the U. S. |The weather was fine.
I like vitamin C. |It helps.
He earned a Ph. D. |In 1999 he left.
She got a B. |It was enough.
"""


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


@pytest.mark.parametrize("cut", MORE.strip().splitlines())
def test_sentences_of_several_languages(cut: str) -> None:
    assert split_sentences(cut.replace("|", "")) == cut.split("|")


@pytest.mark.parametrize("cut", [*CASES.values(), *MORE.strip().splitlines()])
def test_a_text_that_is_written_letter_by_letter_is_cut_at_the_same_places(cut: str) -> None:
    text, spoken, cutter = cut.replace("|", ""), SpokenText(), SentenceCutter(first_units=0)
    whole = "".join(spoken.add(letter) for letter in text) + spoken.end()
    parts = [part for letter in text for part in cutter.add(letter)] + cutter.end()
    assert parts == [one.lstrip() for one in split_sentences(whole) if is_spoken(one)]
