"""Qwen3-Omni (MoE): thinker, talker with its code predictor, code2wav.

The expected config.json and tensor names are those of the published checkpoints (Instruct, and Thinking, which has only
a thinker). The reference implementation is transformers' `qwen3_omni_moe`.
"""
