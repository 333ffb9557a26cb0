"""What a conversation is: messages, their keys, their groups, their size. Pure."""
