"""The operator's pages: plain files of this package, and what serves them."""
