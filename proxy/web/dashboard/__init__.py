"""The operator's pages: static files of this package, and the code that serves them."""
