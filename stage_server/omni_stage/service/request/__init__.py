"""One Generate call: read, planned, admitted, run and answered. `servicer` has the steps in order."""
