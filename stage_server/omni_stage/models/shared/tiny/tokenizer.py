"""Trains a tiny checkpoint's byte-level BPE tokenizer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT = "<|im_end|>"
"""Ends a message, and therefore the thinker's reply."""

PADDING = "<|endoftext|>"
"""Pads batches, and ends a document."""


def build_chat_template(*, image: str, audio: str, video: str, first: str = "", reply: str = "") -> str:
    """Returns a Jinja template that turns chat messages into the model's prompt.

    `image`, `audio`, `video`: the tokens that stand for a medium of this kind; `first`: Jinja statements that run
    before every message; `reply`: Jinja statements after the beginning of the assistant's message.
    """
    return (
        "{%- for message in messages -%}\n" + first + "{{- '<|im_start|>' + message['role'] + '\\n' -}}\n"
        "{%- if message['content'] is string -%}\n"
        "{{- message['content'] -}}\n"
        "{%- else -%}\n"
        "{%- for part in message['content'] -%}\n"
        "{%- if part['type'] == 'image' or 'image' in part or 'image_url' in part -%}\n"
        f"{{{{- '{image}' -}}}}\n"
        "{%- elif part['type'] == 'audio' or 'audio' in part or 'audio_url' in part -%}\n"
        f"{{{{- '{audio}' -}}}}\n"
        "{%- elif part['type'] == 'video' or 'video' in part -%}\n"
        f"{{{{- '{video}' -}}}}\n"
        "{%- elif 'text' in part -%}\n"
        "{{- part['text'] -}}\n"
        "{%- endif -%}\n"
        "{%- endfor -%}\n"
        "{%- endif -%}\n"
        "{{- '<|im_end|>\\n' -}}\n"
        "{%- endfor -%}\n"
        "{%- if add_generation_prompt -%}\n"
        "{{- '<|im_start|>assistant\\n' -}}\n" + reply + "{%- endif -%}\n"
    )


_SPLIT = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
"""Units that merges do not cross: words with their leading space, single digits, runs of punctuation, whitespace."""
_FILLER: Final = "<|extra_"


def train_tokenizer(vocab_size: int, special_tokens: Sequence[str], corpus: Sequence[str] = ()) -> Tokenizer:
    """Returns a byte-level BPE tokenizer of exactly vocab_size ids, the special tokens last. Deterministic.

    `corpus`: sentences to train on in addition to CORPUS. If these give too few merges, filler tokens get the remaining
    ids before the special tokens.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    first_special = vocab_size - len(special_tokens)
    trainer = trainers.BpeTrainer(
        vocab_size=first_special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[],
        show_progress=False,
    )
    tokenizer.train_from_iterator((*CORPUS, *corpus), trainer)
    tokenizer = _fill_vocabulary(tokenizer, first_special)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special_tokens])
    return tokenizer


def _fill_vocabulary(tokenizer: Tokenizer, size: int) -> Tokenizer:
    """Returns the tokenizer, its vocabulary filled up to `size` entries with filler that no merge produces.

    The filler is not made of added tokens, because a tokenizer with 151,000 added tokens takes minutes to load.
    """
    state = json.loads(tokenizer.to_str())
    vocabulary = state["model"]["vocab"]
    vocabulary |= {f"{_FILLER}{index}|>": index for index in range(len(vocabulary), size)}
    return Tokenizer.from_str(json.dumps(state))


def legible_token_ids(tokenizer: Any) -> set[int]:
    """Returns the ids of tokens that are printable ASCII text on their own, and of the token that ends a text."""
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    legible = {
        token_id
        for token_id in range(len(tokenizer))
        if token_id not in special
        and (text := tokenizer.decode([token_id]))
        and text.isascii()
        and text.isprintable()
        and not text.startswith(_FILLER)
    }
    return legible | {tokenizer.eos_token_id}


CORPUS = (
    "system user assistant You are a helpful assistant.",
    "The sea is calm tonight and the moon stands over the harbour.",
    "A ship leaves in the morning with salt, wool and letters for the islands.",
    "People on the shore watch until the last white sail is gone.",
    "What do you see in this picture? What do you hear in this recording?",
    "I hear a voice that reads a short story about rain, rivers and bridges.",
    "Tell me what the weather is like, how far the road goes, and when the train arrives.",
    "The road goes through the hills, past the mill and the old stone bridge, to the town.",
    "Bread, water, fire and light: small words that every language has.",
    "When the wind turns, the birds turn with it and fly along the coast.",
    "Read the sentence slowly, then say it again with a clear and quiet voice.",
    "Three stages work together: one thinks, one talks, one makes the sound.",
    "Hello and good morning. Thank you, and good night.",
    "One, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve.",
    "It was late in the year; the leaves were red and the fields were empty.",
    "She opened the window and listened to the street, the bells and the market.",
    "Where does the river start? It starts in the mountains, under the snow.",
    "He wrote the numbers down, counted them twice, and closed the book.",
)
"""English sentences, written for this file."""
