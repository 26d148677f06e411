"""Words that show whether a full stop ends a sentence, or belongs to an abbreviation or an ordinal number.

European languages together, because the language of a text is not known.
"""

from __future__ import annotations

from typing import Final

TITLES: Final = frozenset(
    "dra dhr mevr drs ul dipl lic ald "
    "mr mrs ms mx dr prof rev fr gen col lt sgt capt cpt cmdr adm maj gov sen rep hon pres st ste mt ft messrs "
    "mme mlle hr fr frau herr sr sra srta dott sig avv ing arch insp supt det pvt cpl e.g i.e cf vs viz ca bzw "
    "z.b d.h s.o s.u i.d.r u.u z.t v.a m.e o.ä u.ä i.a p.ej p.ex v.chr n.chr o.a d.w.z d.v.s t.ex bl.a m.a c.-à-d "
    "i.allg z.hd z.zt bspw einschl ausschl abzgl exkl örn "
    "mgr jud doc phdr bc np např tzv mj vgl ee".split()
)
"""Abbreviations that never end a sentence."""
NUMBERED: Final = frozenset(
    "no nos nr n p pp pg pag pagg pág págs núm num vol fig figs art al ch sec eq op ver tel ext n° nº № str bd kap abs "
    "\u0440\u0438\u0441 \u0441\u0442\u0440 ziff rn az apt abb tab anm".split()
)
"""Abbreviations that never end a sentence if a number follows."""
ABBREVIATIONS: Final = frozenset(
    "co corp inc ltd llc plc bros jr sr etc al approx dept univ assn ave blvd rd ln ct apt est min max misc "
    "ee.uu abb tab anm engl lat griech ehem röm kath ev allg bes gem div aufl sek resp temp esp "
    "std tbsp tsp yr yrs hrs mins secs incl ibid appt govt verh entspr urspr kap tel hab "
    "mfg ed eds trans rev jan feb mar apr jun jul aug sep sept oct nov dec mon tue tues wed thu thur thurs fri "
    "sat sun usw evtl ggf inkl zzgl sog nat tsd mio mrd hl geb gest ecc av bd cie etab env ph.d b.sc m.sc d.c "
    "st sq cu oz lb lbs ca tzn itd itp u.a a.m p.m "
    "\u0442.\u0435 \u0442.\u0434 \u0442.\u043f \u0433 \u0443\u043b \u0433\u0433".split()
)
"""Abbreviations that end a sentence only before a word that begins sentences."""
STARTERS: Final = frozenset(
    "a an the this that these those there it its it's i i'm i've he he's she she's we we're they they're you "
    "your my his her our their who what when where why how which whose did do does is are was were have has "
    "had can could will would should may might must but and so if in on at as after before then however "
    "although because since while for from with no not yes please let let's next now here once also still even "
    "some all many most one two another each every der die das ein eine es er sie wir ich ihr dann aber und "
    "wenn doch da so im am le la les un une il elle on nous vous je ils elles ce cette mais et puis el los las "
    "una ella ellos nosotros pero y lo gli uno lui lei noi ma poi o os as um uma ele ela mas".split()
)
ORDINAL_LEADS: Final = frozenset(
    "der die das dem den des am im zum zur vom beim ein eine einen einem einer jeder jede jedes jeden seit ab bis "
    "ihr ihre sein seine mein meine unser unsere".split()
)
"""German words after which a number with a full stop is an ordinal."""
MONTHS: Final = frozenset(
    "januar jänner februar märz april mai juni juli august september oktober november dezember jahrhundert "
    "klasse stock weltkrieg januari februari maart mei juli oktober december ledna února března dubna května".split()
)
"""Words before which a number with a full stop is an ordinal."""
