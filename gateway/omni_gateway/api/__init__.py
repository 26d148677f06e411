"""The routes: each reads its fields, calls the entry stage, and answers in OpenAI's shape."""
