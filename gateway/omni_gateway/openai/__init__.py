"""OpenAI's fields and shapes, and their translation from and to the client's. Pure."""
