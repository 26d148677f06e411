"""OpenAI's request and response types, and their translation to and from types of the gRPC client. Pure functions."""
