"""Text of prompts as token ids: the tokenizer, the chat template, and what bounds the work on either."""
