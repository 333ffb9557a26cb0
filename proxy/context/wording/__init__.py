"""What stands in a prompt for what has left it, in words."""
