"""One Generate call: reading, planning, admission, execution and responses. `servicer` calls them in order."""
