"""Recorded conversations under several policies, offline: what each would have cost, and what it would have lost."""
