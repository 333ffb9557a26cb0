"""What can be read off a conversation: facts, terms, loops, how far it is, what was touched and learnt."""
