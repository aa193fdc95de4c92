"""One module or folder for each feature."""
