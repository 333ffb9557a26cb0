// The difference of two texts, line by line.

const MOST = 4_000_000;

/** [{sign: "=", "-" or "+", text}], in order. Long texts with little in common come out as all new. */
export function diff(before, after) {
  if (before === after) return before.split("\n").map((text) => ({ sign: "=", text }));
  const [a, b] = [before.split("\n"), after.split("\n")];
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start += 1;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a.at(-1 - end) === b.at(-1 - end)) end += 1;
  const [left, right] = [a.slice(start, a.length - end), b.slice(start, b.length - end)];
  const same = (lines) => lines.map((text) => ({ sign: "=", text }));
  return [...same(a.slice(0, start)), ...middle(left, right), ...same(end ? a.slice(-end) : [])];
}

/** By the longest common subsequence. */
function middle(a, b) {
  const all = [...a.map((text) => ({ sign: "-", text })), ...b.map((text) => ({ sign: "+", text }))];
  if (!a.length || !b.length || a.length * b.length > MOST) return all;
  const width = b.length + 1;
  const long = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      long[i * width + j] = a[i] === b[j] ? long[(i + 1) * width + j + 1] + 1 : Math.max(long[(i + 1) * width + j], long[i * width + j + 1]);
    }
  }
  const made = [];
  let [i, j] = [0, 0];
  while (i < a.length && j < b.length) {
    if (a[i] === b[j]) {
      made.push({ sign: "=", text: a[i] });
      i += 1;
      j += 1;
    } else if (long[(i + 1) * width + j] >= long[i * width + j + 1]) {
      made.push({ sign: "-", text: a[i] });
      i += 1;
    } else {
      made.push({ sign: "+", text: b[j] });
      j += 1;
    }
  }
  return [...made, ...a.slice(i).map((text) => ({ sign: "-", text })), ...b.slice(j).map((text) => ({ sign: "+", text }))];
}
