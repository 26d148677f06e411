"""The prompts, and the sampling, that all sides get."""

from __future__ import annotations

THINKER_TOKENS, TALKER_TOKENS = 32, 64
SAMPLING = {
    "thinker": {"temperature": 0, "max_tokens": THINKER_TOKENS},
    "talker": {"temperature": 0, "max_tokens": TALKER_TOKENS, "repetition_penalty": 1.0},
}
SEED = 7
PROMPTS = tuple(
    f"{question} Answer in one sentence."
    for question in (
        "What is a pipeline?",
        "Why is the sky blue?",
        "How do birds find their way home?",
        "Which river is the longest?",
        "Who wrote the first program?",
        "When do apples ripen?",
        "Where does the wind come from?",
        "How deep is the sea?",
    )
)
