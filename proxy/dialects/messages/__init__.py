"""Anthropic's Messages: requests, their rules, and the events of streamed answers. Pure."""
