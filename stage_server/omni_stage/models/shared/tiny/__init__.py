"""What tiny checkpoints have in common: a tokenizer trained on a few sentences, and files in published forms."""
