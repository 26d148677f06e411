"""Qwen2.5-Omni: thinker (text and media to text), talker (rows to codec tokens), token2wav (codec tokens to audio).

Each stage has a folder. The stage's component runs in the stage server, as does its feed, which converts input that
arrives in parts. The stage's model class runs in the engine's process. processors.py converts the tensors between
stages. tiny/ writes a small seeded checkpoint.
"""
