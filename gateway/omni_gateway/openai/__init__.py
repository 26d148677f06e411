"""OpenAI's request and response types, and their translation to and from the gRPC client's. Pure functions."""
