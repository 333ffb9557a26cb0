"""Sessions and their branches: whose conversation a request belongs to, and its state between two requests."""
