"""Replay of conversations on all cores: of the others, a conversation needs nothing but the lengths of earlier ones.

At most a few conversations per worker are in memory at once, whatever the files hold. If there is little to do, or one
core, this process plays everything: a new process needs half a second before it begins. Results come back in the order
of the conversations, so the same input gives the same report.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import closing, contextmanager

from proxy.replay.play import ConversationResult, LengthHistory, OfferHistory, ReplaySettings, play_conversation
from proxy.replay.read import RecordedConversation
from proxy.settings.policy_files import list_code_folders, open_code_folders

READ_AHEAD = 2
"""Conversations per worker that are read before they are needed."""
MIN_PARALLEL_BYTES = 4 << 20
"""Bytes of messages, times contenders, above which processes are started."""


def play_conversations(
    conversations: Iterator[RecordedConversation], settings: ReplaySettings, jobs: int
) -> Generator[ConversationResult, None, None]:
    """Yield each conversation's result, in order. The caller closes it or uses it up: workers end then."""
    habits = OfferHistory()
    with closing(_play_in_workers(conversations, settings, jobs)) as played:
        yield from map(habits.choose_totals, played)


def _play_in_workers(
    conversations: Iterator[RecordedConversation], match: ReplaySettings, jobs: int
) -> Generator[ConversationResult, None, None]:
    lengths = LengthHistory()
    if jobs < 2:
        yield from (play_conversation(one, match, lengths.list_earlier(one)) for one in conversations)
        return
    first: list[RecordedConversation] = []
    work = 0
    for conversation in conversations:
        first.append(conversation)
        work += sum(map(len, conversation.messages)) * len(match.contenders)
        if work > MIN_PARALLEL_BYTES and len(first) > 1:
            break
    else:
        yield from (play_conversation(one, match, lengths.list_earlier(one)) for one in first)
        return
    with _run_workers(jobs, match) as pool:
        waiting: deque[Future[ConversationResult]] = deque()
        for source in (first, conversations):
            for conversation in source:
                waiting.append(_submit_conversation(pool, conversation, match, lengths.list_earlier(conversation)))
                if len(waiting) > READ_AHEAD * jobs:
                    yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def create_pool(jobs: int, match: ReplaySettings) -> ProcessPoolExecutor:
    """Return a pool whose processes can read these settings, with the stages of files beside policies."""
    # Spawned, not forked: this process may have threads (a progress bar), and a fork would copy their locks.
    return ProcessPoolExecutor(
        jobs,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=open_code_folders,
        initargs=(list_code_folders(match.policies),),
    )


@contextmanager
def _run_workers(jobs: int, match: ReplaySettings) -> Iterator[ProcessPoolExecutor]:
    pool = create_pool(jobs, match)
    before = set(multiprocessing.active_children())
    try:
        yield pool
    except BaseException:
        # Nobody needs their results any more.
        for worker in set(multiprocessing.active_children()) - before:
            worker.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _submit_conversation(
    pool: ProcessPoolExecutor, conversation: RecordedConversation, match: ReplaySettings, lengths: tuple[int, ...]
) -> Future[ConversationResult]:
    """Give a conversation to a worker. A worker that this starts inherits a blocked SIGINT. On Ctrl-C this process ends
    the workers, and they print nothing."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return pool.submit(play_conversation, conversation, match, lengths)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
