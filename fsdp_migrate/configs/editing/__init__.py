"""Where keys and values are in a text, and the edits that change them and no other byte."""
