"""Offline replay of recorded conversations under several policies: the cost and the losses of each policy."""
