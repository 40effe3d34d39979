"""How arrays are stored: the formats of files, each read without its framework."""
