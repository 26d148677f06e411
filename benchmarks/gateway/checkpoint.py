"""Writes a text model with random weights, a byte-level tokenizer and a chat template.

    python -m benchmarks.gateway.checkpoint DIRECTORY SHAPE

Both sides load the same directory. The model's text is noise, but a token costs as much as in any model of that size.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

IM_START: Final = "<|im_start|>"
IM_END: Final = "<|im_end|>"
CHAT_TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int


HIDDEN_1024: Final = "hidden-1024"
TINY: Final = "tiny"
SHAPES: Final = {
    HIDDEN_1024: Shape(hidden=1024, intermediate=2048, layers=4, heads=16, kv_heads=4),
    TINY: Shape(hidden=64, intermediate=128, layers=1, heads=2, kv_heads=2),
}
"""A token of HIDDEN_1024 costs tens of milliseconds of CPU time, so the model does more work than the servers. A token
of TINY costs next to nothing, so the servers do nearly all the work."""
MAX_TOKENS: Final = 2048


def write_checkpoint(directory: Path, shape: Shape, seed: int = 0) -> Path:
    """Write a Qwen2 in float32 into the directory. Returns the directory. The same seed gives the same weights."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(directory)
    end = tokenizer.convert_tokens_to_ids(IM_END)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=MAX_TOKENS,
        bos_token_id=None,
        eos_token_id=end,
        tie_word_embeddings=False,
        dtype="float32",
    )
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(config)
    model.generation_config.eos_token_id = end
    model.save_pretrained(directory)
    return directory


def make_tokenizer() -> Any:
    """Returns a tokenizer with a token for each byte, so that nearly every token can be sent as text immediately."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=[IM_START, IM_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["Please write a long story.", "one two three four five"], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=IM_END, pad_token=IM_END)
    fast.chat_template = CHAT_TEMPLATE
    return fast


if __name__ == "__main__":
    write_checkpoint(Path(sys.argv[1]), SHAPES[sys.argv[2]])
