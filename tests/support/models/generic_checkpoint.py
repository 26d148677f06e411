"""A complete tiny text checkpoint for generic/llm: seeded weights, a real byte-level BPE tokenizer, a chat template.

The model's output is random text. The checkpoint has about 1 MB and is written in seconds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from support.models.large_vocabulary import large_vocabulary

END_OF_TEXT: Final = "<|endoftext|>"
IM_START: Final = "<|im_start|>"
IM_END: Final = "<|im_end|>"
CHAT_TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOL_CALL: Final = ("<tool_call>", "</tool_call>")
THINK: Final = ("<think>", "</think>")
TOOL_TEMPLATE: Final = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "{% for call in message.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Qwen's template with tools, shortened."""
_CORPUS: Final = (
    "A pipeline hands tensors from stage to stage.",
    "The thinker reads text and writes text; the talker speaks.",
    "Hello, how are you today? I am well, thank you.",
    "one two three four five six seven eight nine ten",
)
_VOCABULARY: Final = 320


def write_tiny_text_checkpoint(
    directory: Path, seed: int = 0, *, kv_heads: int = 2, tools: bool = False, large: bool = False
) -> Path:
    """Writes the checkpoint (Qwen2 architecture, float32) into the directory. Returns the directory.

    The same seed gives the same bytes. `kv_heads` is 1, 2 or 4 for 4 query heads; below 4 is grouped-query attention.
    `large`: the vocabulary has 150,000 more tokens (80 MB). `tools` adds Qwen's tokens for tool calls and reasoning, a
    template that shows tools, and a longer context.
    """
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer()
    if tools:
        # Not special tokens, because parsers read them in the text.
        tokenizer.add_tokens([*TOOL_CALL, *THINK])
        tokenizer.chat_template = TOOL_TEMPLATE
    if large:
        tokenizer = _grow(tokenizer)
    tokenizer.save_pretrained(directory)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        max_position_embeddings=2048 if tools else 512,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids(IM_END),
        tie_word_embeddings=large,
        # Large enough that the logits of greedy tokens differ by more than rounding errors.
        initializer_range=0.1,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
    model.generation_config.eos_token_id = config.eos_token_id
    model.save_pretrained(directory, safe_serialization=True)
    return directory


def _grow(tokenizer: Any) -> Any:
    """Returns the tokenizer with the tokens of large_vocabulary, which it decodes but never encodes."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    state = json.loads(tokenizer.backend_tokenizer.to_str())
    known, letters = state["model"]["vocab"], bytes_to_unicode()
    size = len(tokenizer)
    for text in large_vocabulary():
        written = "".join(letters[byte] for byte in text.encode())
        if written not in known:
            known[written] = size
            size += 1
    grown = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)), eos_token=IM_END, pad_token=END_OF_TEXT
    )
    grown.chat_template = tokenizer.chat_template
    return grown


def train_tokenizer() -> Any:
    """Returns a byte-level BPE tokenizer that is trained on a few sentences and has the chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=[END_OF_TEXT, IM_START, IM_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=IM_END, pad_token=END_OF_TEXT)
    fast.chat_template = CHAT_TEMPLATE
    return fast
