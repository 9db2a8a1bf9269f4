"""What no rewrite can reach: reported, never touched."""
