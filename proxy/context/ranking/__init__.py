"""What of a conversation is worth how much, and so what goes first."""
