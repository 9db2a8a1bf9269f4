"""Writers: each puts a state under a path that is not there yet, reading one tensor after the other."""
