"""Guesses the pronunciation of an English word that the dictionary does not hold, from its letters. Pure.

The rules follow NRL Report 7948 (Elovitz and others, 1976), a work of the U.S. Government and so in the public domain;
shortened.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

_CLASSES: Final = {
    "V": "[aeiouy]+",  # one or more vowels
    "C": "[bcdfghjklmnpqrstvwxz]",  # one consonant
    "*": "[bcdfghjklmnpqrstvwxz]*",  # any consonants
    "E": "(?:er|es|ed|ely|e|ing)",  # an ending that leaves the vowel before it long
    "F": "[eiy]",  # a front vowel
    "S": "[^a-z]",  # the border of the word
}
_RULES: Final = """
a: S.S=AH0 .ruleS=EY1 S.rS=AA1 S.r=AH0_R C.re=EH1_R .r=AA1_R S.boutS=AH0 .self=AE1 .wS=AO1 S.ny=EH1 .rE=EH1_R\
 V.lS=AH0 S.gain=AH0 *.geS=IH0 *.bleS=EY1 .CES=EY1 .CFC=EY1 .CiV=EY1 .CeS=EY1 w.s=AA1 w.t=AA1 .=AE1
ai: .=EY1
air: .=EH1_R
ay: .=EY1
au: .=AO1
aw: .=AO1
al: .k=AO1 .l=AO1_L .m=AA1
augh: .=AO1
age: V*.S=IH0_JH
able: V*.S=AH0_B_AH0_L
b: .b= .=B
bt: .S=T
c: .F=S .ia=SH .c= .=K
ch: S.r=K .=CH
ck: .=K
sch: .=S_K
tch: .=CH
d: .d= .=D
dge: .=JH
e: S.S=IY1 V*.S= C.S= V*.dS= V*.sS= .r=ER0 .CES=IY1 S*.S=IY1 .w=Y_UW1 .=EH1
ea: .d=EH1 .=IY1
ear: .C=ER1 .=IH1_R
ed: t.S=IH0_D d.S=IH0_D [pkfsxhc].S=T V*.S=D
ee: .=IY1
eer: .=IH1_R
ei: c.=IY1 .=EY1
eigh: .=EY1
er: .=ER0
es: [szxh].S=IH0_Z c.S=IH0_Z V*.S=Z
eu: .=Y_UW1
ew: r.=UW1 .=Y_UW1
ey: .S=IY0 .=EY1
f: .f= .=F
ful: V*.S=F_AH0_L
g: .g= .iv=G S.et=G .eS=JH .F=JH .=G
gh: S.=G .S= .t= .=G
gn: S.=N .S=N
gu: .V=G
h: S.=HH .V=HH .=
i: S.S=AY1 S.n=IH1 C.a=IY0 C.o=IY0 .rE=AY1_R .gh=AY1 .ld=AY1 .ndS=AY1 .CES=AY1 .CeS=AY1 .=IH1
ie: C.S=AY1 .ld=IY1 .=IY1
igh: .=AY1
ing: V*.S=IH0_NG
ion: [st].= .=IY0_AH0_N
ique: .S=IY1_K
ir: .=ER1
ism: .S=IH0_Z_AH0_M
ity: .S=AH0_T_IY0
ive: V*.S=IH0_V
j: .=JH
k: S.n= .=K
l: .l= .k=L .=L
le: C.S=AH0_L
less: V*.S=L_AH0_S
m: .m= .=M
ment: V*.S=M_AH0_N_T
n: .n= .k=NG .=N
ness: V*.S=N_AH0_S
ng: .=NG
o: .S=OW1 .rV=AO1_R .r=AO1_R .CES=OW1 .CeS=OW1 .ld=OW1 .st=OW1 .lk=OW1 .=AA1
oa: .=OW1
oi: .=OY1
oo: .k=UH1 .=UW1
or: w.=ER1 V*.S=ER0 .=AO1_R
ou: .s=AW1 .gh=AW1 .ld=UH1 .n=AW1 .t=AW1 V*.sS=AH0 .=UW1
ough: .t=AO1 .=OW1
our: .=AO1_R
ous: V*.S=AH0_S
ow: .n=AW1 .S=OW1 .=OW1
oy: .=OY1
p: .p= .=P
ph: .=F
ps: S.y=S
pn: S.=N
qu: .eS=K .=K_W
r: .r= .=R
rh: S.=R
s: .s= V.S=Z [bdgmnlrvw].S=Z V.e=Z .=S
sc: .F=S .=S_K
sh: .=SH
sion: V.=ZH_AH0_N .=SH_AH0_N
ssion: .=SH_AH0_N
sure: V.=ZH_ER0
t: .t= .=T
th: .erS=DH .=TH
tia: .=SH_AH0
tion: .=SH_AH0_N
tious: .=SH_AH0_S
ture: V*.=CH_ER0 C.=CH_ER0
u: S.n=AH1 S.CV=Y_UW1 .CeS=UW1 .CES=UW1 .CiV=UW1 .CV=UW1 .r=ER1 .=AH1
ue: .S=UW1
ui: .=UW1
ur: .=ER1
v: .=V
w: .=W
wh: .o=HH .=W
wr: S.=R
x: S.=Z .=K_S
y: S.V=Y S.=Y C.S=IY0 S*.S=AY1 .CeS=AY1 .=IH1
z: .z= .=Z
"""
_LAST_BUT_ONE: Final = ("tion", "sion", "ic", "ics", "ical", "ity", "ian", "ial", "ious")
"""Endings before which the vowel has the stress."""


def guess_phones(word: str) -> list[str]:
    """Returns ARPAbet with stress digits for a word of the letters a to z; empty for an empty word."""
    padded, place = f" {word} ", 1
    phones: list[str] = []
    while place < len(padded) - 1:
        size, found = _apply(padded, place)
        phones += found
        place += size
    return _stress(word, phones)


def _apply(padded: str, place: int) -> tuple[int, list[str]]:
    rules, longest = _compiled()
    for size in range(min(longest, len(padded) - 1 - place), 0, -1):
        for before, after, phones in rules.get(padded[place : place + size], ()):
            if before.search(padded[:place]) and after.match(padded, place + size):
                return size, phones
    return 1, []


def _stress(word: str, phones: list[str]) -> list[str]:
    """Returns the phones with exactly one stressed vowel, if there is a vowel; the others are reduced."""
    vowels = [index for index, phone in enumerate(phones) if phone[-1].isdigit()]
    strong = [index for index in vowels if phones[index].endswith("1")] or vowels
    if not strong:
        return phones
    chosen = strong[0]
    if word.endswith(_LAST_BUT_ONE) and len(vowels) > 1:
        endings = 2 if word.endswith(("ity", "ical")) and len(vowels) > 2 else 1
        chosen = vowels[-1 - endings]
    return [
        phone[:-1] + ("1" if index == chosen else "0") if index in vowels else phone
        for index, phone in enumerate(phones)
    ]


@cache
def _compiled() -> tuple[dict[str, list[tuple[re.Pattern[str], re.Pattern[str], list[str]]]], int]:
    """Returns the rules by their letters, and the number of letters of the longest."""
    rules: dict[str, list[tuple[re.Pattern[str], re.Pattern[str], list[str]]]] = {}
    for line in _RULES.replace("\\\n", "").strip().splitlines():
        letters, _, written = line.partition(": ")
        for rule in written.split():
            context, _, phones = rule.partition("=")
            before, _, after = context.partition(".")
            rules.setdefault(letters, []).append(
                (re.compile(_pattern(before) + r"\Z"), re.compile(_pattern(after)), [s for s in phones.split("_") if s])
            )
    return rules, max(map(len, rules))


def _pattern(context: str) -> str:
    pieces = re.findall(r"\[[^\]]*\]|.", context)
    return "".join(_CLASSES.get(piece, piece) for piece in pieces)
