"""Qwen2.5-Omni: thinker (text, sound and images to text), talker (rows to codec tokens), token2wav (codes to sound).

Components (thinker, talker, token2wav) run in the stage server, model classes (talker_model, token2wav_model) in the
engine's process; processors join the stages; tiny writes a small seeded checkpoint.
"""
