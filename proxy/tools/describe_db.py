"""`describe_db`: the tables and columns that `query_db` reads, the amount of data, and what is allowed."""

from __future__ import annotations

import msgspec

from proxy.tools import stored_history
from proxy.tools.sandbox_child import FUNCTIONS
from proxy.tools.tool import Tool
from proxy.tools.tool_context import ToolContext

SCHEMA_TEXT = """messages: one row a message of this conversation
  seq INTEGER            order in which they came; a call that was answered out of sight bears the number of its answer
  id TEXT                10 characters; recall(id) reads a message whole
  group_id TEXT          one user prompt with all that followed from it
  role TEXT              user, assistant, tool, ...
  content TEXT           the text; an assistant's calls stand behind it as lines "[call ID] NAME ARGUMENTS"
  tool_call_id TEXT      of a tool result: the call that it answers
  status TEXT            completed, tool_call (it calls tools), dropped (it was taken back: by the operator, or undone)
  parsing_strategy TEXT  the kind of model that it was made for
  tokens INTEGER
  created_at TEXT        UTC, YYYY-MM-DD HH:MM:SS
  in_prompt INTEGER      1 where it stands in your prompt, whole or shortened; 0 where it has left it
messages_fts(seq, id, role, content): the same for search by words, and by their other forms:
  WHERE messages_fts MATCH 'word OR "two words" OR begin*' ORDER BY rank; AND role = 'user' finds what the user said;
  snippet(messages_fts, -1, '', '', '...', 40) shows where; join by rowid
  A run of Chinese, Japanese, Korean or Thai is one word to it: use messages WHERE content LIKE '%word%' for these"""


class DescribeDbArguments(msgspec.Struct, frozen=True):
    """No arguments."""


async def describe_tables(_: DescribeDbArguments, context: ToolContext) -> str:
    """Return the schema and the number of messages."""
    own, place = context.readable_keys, (context.tenant, context.session)
    if own is None:
        last = await context.store.read_messages(*place, 0, 1, newest=True)
        count = last[0].seq if last else 0
    else:  # another conversation may be in this session, whose messages `query_db` does not have either
        count = len(await context.store.find_known_messages(*place, list(own)))
    return (
        f"{SCHEMA_TEXT}\nstored so far: {count} messages. One SELECT at a time, reading only; functions:"
        f" {', '.join(sorted(FUNCTIONS))}."
        f" Of a very long conversation the newest {stored_history.MAX_COPIED_BYTES >> 20} MiB"
        " are searched."
    )


DESCRIBE_DB = Tool(
    name="describe_db",
    description="The tables and columns that query_db reads, and what it allows.",
    parameters={},
    required=(),
    arguments_type=DescribeDbArguments,
    handler=describe_tables,
)
