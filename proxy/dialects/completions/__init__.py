"""OpenAI's Chat Completions: requests, and the chunks of streamed answers. Pure."""
