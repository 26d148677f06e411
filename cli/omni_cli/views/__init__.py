"""Data of what commands draw (a status, a timeline), computed before it is drawn."""
