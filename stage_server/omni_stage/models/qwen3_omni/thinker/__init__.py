"""The first stage: reads text, sound and images, writes text."""
