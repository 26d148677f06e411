"""The components of a paced pipeline: thinker, talker and decoder."""
