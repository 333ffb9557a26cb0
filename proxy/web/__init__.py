"""Who asks: raw ASGI, so that bytes, the client's leaving and a broken answer arrive as they are."""
