"""The last stage: frames of codes to sound."""
