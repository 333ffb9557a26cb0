"""The upstreams, the requests to them, and the scripted upstream that needs no key and no network."""
