"""The helper model: the second, cheaper model that answers questions of the proxy, with its budget and its queue."""
