"""Qwen3-Omni (MoE): thinker, talker with its code predictor, code2wav.

config.json and the tensor names must be as in the published checkpoints (Instruct, and Thinking, which has only
a thinker). The reference implementation is transformers' `qwen3_omni_moe`.
"""
