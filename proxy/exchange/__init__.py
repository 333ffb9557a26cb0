"""One request from end to end: session, plan, answer and stored record."""
