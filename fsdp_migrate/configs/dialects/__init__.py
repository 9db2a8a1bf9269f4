"""One class per dialect: recognises a document by its content and gives the blocks of settings in it."""
