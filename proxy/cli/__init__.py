"""The command line: one file a command, and what the commands share."""
