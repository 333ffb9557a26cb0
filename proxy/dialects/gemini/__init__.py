"""Gemini's `generateContent`: contents of stored messages in that form. Pure."""
