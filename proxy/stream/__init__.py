"""An upstream's answer: its events, the chunks in them, and the message that the chunks add up to.

Pure: bytes in, bytes out. The bytes of upstream go on unchanged; facts read from them are kept separately. Only what
the client must not see is removed: STATE blocks, and usage that the client did not ask for.
"""
