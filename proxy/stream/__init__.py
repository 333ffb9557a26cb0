"""An upstream's answer: its events, the chunks in them, and the message that the chunks add up to.

Pure: bytes in, bytes out. The bytes of upstream are passed on unchanged. Facts read from them are kept separately. Only
STATE blocks, and usage that the client did not ask for, are removed."""
