"""A cascade without weights: one stage repeats a text, word by word, and another speaks each sentence as tones."""
