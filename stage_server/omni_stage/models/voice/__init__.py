"""Voices: text to speech, in one step a sentence."""
