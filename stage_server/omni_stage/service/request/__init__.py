"""One Generate call: reading, planning, admission, execution and responses. `servicer` has the steps in order."""
