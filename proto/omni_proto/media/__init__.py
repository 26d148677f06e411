"""Headers of media files, read without decoding the media."""
