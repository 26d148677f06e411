"""Code shared by all tiny checkpoints: a tokenizer trained on a few sentences, and files in published formats."""
