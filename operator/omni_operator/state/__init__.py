"""What is: the objects of one pipeline as they were observed, by revision and stage, and why pods do not run."""
