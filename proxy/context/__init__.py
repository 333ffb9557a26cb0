"""How a prompt is rewritten: what flows, when edits are made, and what a strict upstream accepts. Pure."""
