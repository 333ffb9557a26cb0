"""One request from end to end: whose it is, what is sent, what comes back, what is remembered."""
