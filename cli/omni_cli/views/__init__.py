"""What commands draw, computed apart from drawing it: a status, a timeline."""
