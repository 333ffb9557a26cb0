"""What the model writes for itself: the STATE block, and later scratchpad, memos and reflections.

Pure: texts in, texts out. Where they are kept is the store's business, when they are asked for the policy's.
"""
