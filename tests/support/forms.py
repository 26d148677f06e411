"""Makes random JSON Schemas, and texts that xgrammar allows for a form."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import xgrammar as xgr

from support.models.large_vocabulary import large_vocabulary

STOP = 256
_LIKED = np.frombuffer(b'{}[]",:0123456789abcde.-+ ', np.uint8)
_CLOSING = np.frombuffer(b'"}],', np.uint8)
_PATTERNS = (
    *(
        "^a+$",
        "[a-c]{1,3}",
        r"\d{2}",
        "^.$",
        r"\S+",
        "[ -~]{0,4}",
        "^(a|b)*$",
        r"\w+@\w+",
        "[^a]{1,2}",
        "é",
        r"[\]\-a]+",
    ),
    *("a.c", r"\W", r"\D{2}", r"[\w.-]+", "x?", "(?:ab){2,3}", r"\/", r"\u00e9", "a|", "(?=a)b", "a^b", '["x]'),
)
_VALUES = (1, 2.0, "a", 'b"c', None, True, [1], {"title": 1}, {"title": 2}, "é\n", 1e30, -0.5, {"a": [{"default": 3}]})
_FORMATS = (
    *("date", "email", "uuid", "time", "date-time", "ipv4", "ipv6", "uri", "hostname", "duration", "uri-reference"),
    *("json-pointer", "uri-template", "color"),
)
_NUMBERS = (0, 1, -1, 3, 10, -7, 100, 2.5, -0.5, 0.1, 1e3, 99)
_NAMES = ("a", "title", "default", "b c", "é", 'q"t', "description", "n")


def byte_tokens() -> xgr.TokenizerInfo:
    """Returns the smallest vocabulary: one token for each byte, and one that ends the text."""
    tokens = [bytes((value,)) for value in range(256)] + [b"</s>"]
    return xgr.TokenizerInfo(tokens, vocab_type=xgr.VocabType.RAW, vocab_size=len(tokens), stop_token_ids=[STOP])


def many_tokens() -> xgr.TokenizerInfo:
    """Returns a vocabulary of more than 150,000 tokens."""
    single = [bytes((value,)) for value in range(256)]
    tokens = [*single, *(text.encode() for text in large_vocabulary() if len(text.encode()) > 1), b"</s>"]
    return xgr.TokenizerInfo(
        tokens, vocab_type=xgr.VocabType.RAW, vocab_size=len(tokens), stop_token_ids=[len(tokens) - 1]
    )


def accepts(compiled: xgr.CompiledGrammar, text: str) -> bool:
    """Returns whether a form of byte_tokens allows this text."""
    matcher = xgr.GrammarMatcher(compiled)
    return bool(matcher.accept_string(text) and matcher.accept_token(STOP))


def write_text(compiled: xgr.CompiledGrammar, chosen: random.Random, length: int = 60) -> bytes | None:
    """Returns a random text of a form of byte_tokens; None if it did not end in time. Raises ValueError if the form
    allows no next token."""
    matcher, mask, text = xgr.GrammarMatcher(compiled), xgr.allocate_token_bitmask(1, STOP + 1), bytearray()
    for step in range(4 * length):
        matcher.fill_next_token_bitmask(mask)
        ids = np.flatnonzero(np.unpackbits(mask[0].numpy().view(np.uint8), bitorder="little", count=STOP + 1))
        if not len(ids):
            raise ValueError("no token can follow")
        may_end, ids = STOP in ids, ids[ids != STOP]
        if may_end and (not len(ids) or step > length or chosen.random() < 0.3):
            return bytes(text)
        for preferred, wanted in ((_CLOSING, step > length), (_LIKED, chosen.random() < 0.8)):
            if wanted and len(np.intersect1d(ids, preferred)):
                ids = np.intersect1d(ids, preferred)
        token = int(chosen.choice(list(ids)))
        matcher.accept_token(token)
        text.append(token)
    return None


def random_schema(chosen: random.Random, depth: int = 3) -> Any:
    """Returns a JSON Schema of up to this depth, with keywords that are enforced and some that are not."""
    maker = chosen.choice(_INNER if depth else _LEAVES)
    return maker(chosen, depth - 1)


def _some(chosen: random.Random, names: tuple[str, ...], value: Any) -> dict[str, Any]:
    return {name: value() for name in chosen.sample(names, chosen.randrange(len(names)))}


def _number(chosen: random.Random, _: int) -> Any:
    bounds = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
    kind = chosen.choice(("integer", "number"))
    return {"type": kind, **dict(list(_some(chosen, bounds, lambda: chosen.choice(_NUMBERS)).items())[:2])}


def _string(chosen: random.Random, _: int) -> Any:
    lengths = _some(chosen, ("minLength", "maxLength", "description"), lambda: chosen.randrange(5))
    shape = chosen.choice(({}, {"pattern": chosen.choice(_PATTERNS)}, {"format": chosen.choice(_FORMATS)}))
    return {"type": "string", **(chosen.choice((lengths, shape, {**lengths, **shape})))}


def _values(chosen: random.Random, _: int) -> Any:
    values = chosen.sample(_VALUES, chosen.randrange(1, 4))
    return chosen.choice(({"enum": values}, {"const": values[0]}, {"const": values[0], "type": "string"}))


def _plain(chosen: random.Random, _: int) -> Any:
    types = ("null", "boolean", ["string", "null"], ["integer", "string"], "object", "array")
    return chosen.choice((True, {}, {"type": chosen.choice(types), "title": "t"}, {"not": {"type": "null"}}))


def _array(chosen: random.Random, depth: int) -> Any:
    counts = _some(chosen, ("minItems", "maxItems", "uniqueItems"), lambda: chosen.randrange(4))
    first = {"prefixItems": [random_schema(chosen, depth)]} if chosen.random() < 0.3 else {}
    return {"type": "array", "items": chosen.choice((False, random_schema(chosen, depth))), **counts, **first}


def _object(chosen: random.Random, depth: int) -> Any:
    names = chosen.sample(_NAMES, chosen.randrange(4))
    made: dict[str, Any] = {"type": "object", "properties": {name: random_schema(chosen, depth) for name in names}}
    if chosen.random() < 0.6:
        made["required"] = chosen.sample([*names, "other"], chosen.randrange(len(names) + 1))
    if chosen.random() < 0.4:
        made["additionalProperties"] = chosen.choice((False, True, random_schema(chosen, depth)))
    return {
        **made,
        **_some(chosen, ("minProperties", "maxProperties", "dependentRequired"), lambda: chosen.randrange(3)),
    }


def _map(chosen: random.Random, depth: int) -> Any:
    values, pattern = random_schema(chosen, depth), chosen.choice(_PATTERNS)
    names = chosen.choice(({"pattern": pattern}, {"maxLength": 2}, {"enum": ["a", "b"]}))
    return chosen.choice(
        (
            {"type": "object", "patternProperties": {pattern: values}},
            {"type": "object", "propertyNames": names, "additionalProperties": values},
        )
    )


def _choice(chosen: random.Random, depth: int) -> Any:
    arms = [random_schema(chosen, depth) for _ in range(chosen.randrange(1, 4))]
    return {chosen.choice(("anyOf", "anyOf", "oneOf", "allOf")): arms}


_LEAVES = (_number, _string, _string, _values, _plain)
_INNER = (*_LEAVES, _array, _object, _object, _map, _choice)
