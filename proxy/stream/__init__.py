"""What an answer is: events, the chunks in them, and the message they add up to.

Pure: bytes in, bytes out. The bytes that upstream sent go on unchanged; what was learnt from them stands beside
them. Only what the client must not see (STATE blocks, usage that it did not ask for) is taken out.
"""
