"""`python -m omni_stage fetch`: downloads a checkpoint from a hub into a directory. Start at `checkpoint.fetch`."""
