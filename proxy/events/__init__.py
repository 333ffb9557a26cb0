"""Events of conversations: the bus that listeners subscribe to, and webhooks."""
