"""What the proxy does for the model: one file a tool, the catalog that lists them, and the sandbox for its SQL.

Nothing here knows how a call of ours comes out of an answer or how its result gets back in: that is the exchange's
business. A tool takes arguments that a model wrote and gives a text for it to read, and never raises.
"""
