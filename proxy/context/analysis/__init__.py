"""Analysis of a conversation: identifiers, terms, loops, iterations, outcomes of calls, and the activity record."""
