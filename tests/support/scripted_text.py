"""A text model that says what a test wrote down: its weights are a table from each token to the next.

Attention and MLP add nothing, embeddings are one-hot, and the head maps each token to its successor. So a real engine
writes tool calls and reasoning token by token, as a trained model would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from support.generic_checkpoint import IM_END, THINK, TOOL_CALL, train_tokenizer

HIDDEN: Final = 512
"""At least as many as there are tokens."""
TEMPLATE: Final = (
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "{% for call in message.tool_calls or [] %}{{ call.function.name }}{{ call.function.arguments | tojson }}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{{ messages[-1]['content'] }}{% endif %}"
)
"""The prompt ends with the last message: a script's name begins the script."""


def write_scripted_checkpoint(directory: Path, scripts: Mapping[str, Sequence[str]]) -> Path:
    """Write a checkpoint that answers a message NAME with the pieces of scripts[NAME], one token each.

    A piece may stand in one place only, since it says what comes next; a script may end with the name of another.
    """
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokenizer = train_tokenizer()
    pieces = [piece for name, script in scripts.items() for piece in (name, *script)]
    tokenizer.add_tokens(list(dict.fromkeys([*TOOL_CALL, *THINK, *pieces])))
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(directory)
    end = tokenizer.convert_tokens_to_ids(IM_END)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        bos_token_id=None,
        eos_token_id=end,
        tie_word_embeddings=False,
        dtype="float32",
    )
    model = Qwen2ForCausalLM(config)
    table = _successors(tokenizer, scripts, end)
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(len(tokenizer), HIDDEN))
        model.lm_head.weight.zero_()
        for token, successor in enumerate(table):
            model.lm_head.weight[successor, token] = 1.0
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    model.generation_config.eos_token_id = end
    model.save_pretrained(directory, safe_serialization=True)
    return directory


def _successors(tokenizer: Any, scripts: Mapping[str, Sequence[str]], end: int) -> list[int]:
    """The next token of each token; the end of text where no script says one."""
    if len(tokenizer) > HIDDEN:
        raise ValueError(f"{len(tokenizer)} tokens, at most {HIDDEN} have a row of their own")
    table: dict[int, int] = {}
    for name, script in scripts.items():
        said, goes_on = (script[:-1], script[-1]) if script[-1] in scripts else (script, "")
        pieces = [name, *said, scripts[goes_on][0] if goes_on else IM_END]
        ids = [tokenizer.convert_tokens_to_ids(piece) for piece in pieces]
        for token, successor in pairwise(ids):
            if table.setdefault(token, successor) != successor:
                raise ValueError(f"{tokenizer.convert_ids_to_tokens(token)!r} stands in two places")
    return [table.get(token, end) for token in range(len(tokenizer))]
