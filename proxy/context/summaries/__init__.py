"""Texts that are in a prompt in place of content that has left it."""
