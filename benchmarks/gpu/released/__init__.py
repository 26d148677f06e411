"""The released weights: the answers that others published, and transformers' answers."""
