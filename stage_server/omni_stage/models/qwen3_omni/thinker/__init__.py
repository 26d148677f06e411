"""The first stage: reads text, audio, images and video, writes text."""
