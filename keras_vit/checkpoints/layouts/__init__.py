"""What arrays are called: one file per family of checkpoints, each a table of names that reads both ways."""
