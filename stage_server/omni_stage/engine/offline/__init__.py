"""A pipeline without stage servers: OmniLLM, and the stage that it runs for each engine."""
