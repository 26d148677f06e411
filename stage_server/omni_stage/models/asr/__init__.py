"""Speech recognition: Whisper, which turns an audio file into text and into the input of a text model."""
