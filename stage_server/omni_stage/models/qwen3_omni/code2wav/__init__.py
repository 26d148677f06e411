"""The last stage: frames of codes to audio."""
