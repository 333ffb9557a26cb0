"""One wire format a file; nothing above this folder, `stream` and `web` knows a wire field by name."""
