"""From a sentence to the symbols that a voice reads: normalization, phonemes, ids. Pure; no torch."""
