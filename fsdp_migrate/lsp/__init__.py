"""A language server: what ``check`` finds, beside the lines of an editor, with the edits of ``rewrite``."""
