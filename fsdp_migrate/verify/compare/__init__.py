"""Two recordings in, a verdict out; nothing here runs a program or reads a file."""
