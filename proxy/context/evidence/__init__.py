"""Analysis of a conversation: facts, terms, loops, iterations, the activity record and reflections."""
