"""The rewriting of a prompt: the data that flows, the schedule of edits, the rules of strict upstreams. Pure code."""
