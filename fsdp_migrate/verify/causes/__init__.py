"""Named causes of a difference: one class a cause, in the order in which they are asked."""
