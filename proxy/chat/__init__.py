"""A conversation: messages, their keys, their groups, their size. Pure."""
