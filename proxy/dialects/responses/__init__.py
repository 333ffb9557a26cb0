"""OpenAI's Responses: requests, rules and answers."""
