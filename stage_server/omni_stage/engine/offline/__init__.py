"""A pipeline without stage servers: OmniLLM, and StageLLM, which runs one of its stages."""
