"""Notes that the model writes for itself: the STATE block, the scratchpad, memos and reflections.

Pure: texts in, texts out. The store decides where notes are kept, the policy when the model is asked for them.
"""
