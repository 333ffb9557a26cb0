"""The worth of the parts of a conversation, and so the order in which they leave."""
