"""The command line: one file per command, and the parts that the commands share."""
