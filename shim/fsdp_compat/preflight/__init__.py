"""Is what is about to be trained what its authors think it is: a look at model and optimizer before the first step."""
