"""Operator actions on a session and views of it, for the operator, the in-band commands and the API.

Every decision is stored before it acts, holds in every policy, and is found again by any process. Writers here and the
planner meet in the store, and in the session's memory where the session lives in this process.
"""
