"""What an operator, a command or the API does to a session, and what they are shown of it.

Every decision is stored before it acts, holds in every policy, and is found again by any process: who writes here and
who plans meet in the store, and in the session's memory where it lives in this process.
"""
