"""Qwen2.5-Omni: thinker (text, audio and images to text), talker (rows to codec tokens), token2wav (codes to audio).

One folder for each stage: its component runs in the stage server, its model class in the engine's process, and its feed
converts input that arrives in parts. processors.py joins the stages; tiny/ writes a small seeded checkpoint.
"""
