"""One file as a list of operations over numbered values, from its ``ast``: names are gone, order is in the numbers."""
