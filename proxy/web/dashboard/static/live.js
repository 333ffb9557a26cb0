// Repetition of a task while a view exists and the page is visible.

/** Run `task` now and every `seconds` after it ended, until the signal; at once when the page is visible again. */
export function every(seconds, signal, task) {
  let timer = 0;
  let running = false;
  const run = async () => {
    clearTimeout(timer);
    if (signal.aborted || running) return;
    running = true;
    try {
      if (!document.hidden) await task();
    } finally {
      running = false;
      if (!signal.aborted) timer = setTimeout(run, seconds * 1000);
    }
  };
  document.addEventListener("visibilitychange", () => document.hidden || run(), { signal });
  signal.addEventListener("abort", () => clearTimeout(timer));
  run();
  return run;
}
