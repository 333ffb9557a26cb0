"""The web layer: raw ASGI, so that bytes, a client's disconnect and a broken answer arrive unchanged."""
