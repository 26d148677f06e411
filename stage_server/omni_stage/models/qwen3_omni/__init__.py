"""Qwen3-Omni (MoE): thinker, talker with its code predictor, code2wav.

config.json and the tensors' names are those of the published checkpoints (Instruct, and Thinking, which has only a
thinker). The reference is transformers' `qwen3_omni_moe`.
"""
