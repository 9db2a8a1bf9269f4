"""Reading, judging and converting checkpoints, without ever executing what a pickle asks for."""
