"""The proxy's own tools: one file a tool, the catalog that lists them, and the sandbox for its SQL.

This package does not find calls in an answer and does not put results back: the exchange does that. A tool takes
arguments that a model wrote and gives a text for the model to read. A call by `run_tool_call` always gives a text, and
never raises an error of the tool.
"""
