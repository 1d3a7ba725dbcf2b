"use strict";
// The samples: an index of numbers, decoded at once, and texts in compressed chunks, decoded when they are looked at.

const Store = (() => {
  // Decoded chunks that stay in memory. Each has about a quarter of a million characters.
  const KEPT_CHUNKS = 60;

  const isParsed = new Promise((resolve) => {
    if (document.readyState === "loading") addEventListener("DOMContentLoaded", resolve, { once: true });
    else resolve();
  });

  // A block is JSON, compressed with zlib and in base64.
  const decode = async (id) => {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).json();
  };

  // Replaces a column of texts by numbers, and returns the different texts.
  const numberTexts = (table, name) => {
    const numbers = new Map();
    table[name] = (table[name] || []).map((text) => {
      if (!numbers.has(text)) numbers.set(text, numbers.size);
      return numbers.get(text);
    });
    return [...numbers.keys()];
  };

  // Resolves to { sources, tasks, outcomes, failures, questions, samples } with columns, and with the links between them.
  const open = async () => {
    const index = await decode("index");
    const { questions, samples } = index;
    index.tasks = numberTexts(questions, "task");
    index.outcomes = numberTexts(samples, "outcome");
    index.failures = numberTexts(samples, "failure");
    const asked = questions.task.length;
    index.total = samples.outcome.length;
    // The question of each sample, the first sample of each question, and its place in its chunk.
    index.owner = new Int32Array(index.total);
    index.first = new Int32Array(asked + 1);
    index.inChunk = new Int32Array(asked);
    for (let question = 0; question < asked; question += 1) {
      const start = index.first[question];
      index.first[question + 1] = start + questions.count[question];
      index.owner.fill(question, start, index.first[question + 1]);
      const isNext = question > 0 && questions.chunk[question] === questions.chunk[question - 1];
      index.inChunk[question] = isNext ? index.inChunk[question - 1] + 1 : 0;
    }
    return index;
  };

  const chunks = new Map();

  // The decoded chunk, if it is in memory; the map is in the order of the last use.
  const ready = (number) => {
    const chunk = chunks.get(number);
    if (!chunk) return null;
    chunks.delete(number);
    chunks.set(number, chunk);
    return chunk.texts;
  };

  const load = (number) => {
    if (chunks.has(number)) return chunks.get(number).loading;
    const chunk = { texts: null };
    chunk.loading = loadOnce(number).then((texts) => {
      chunk.texts = texts;
      return texts;
    });
    chunks.set(number, chunk);
    if (chunks.size > KEPT_CHUNKS) chunks.delete(chunks.keys().next().value);
    return chunk.loading;
  };

  // For a search, which passes through all chunks once.
  const loadOnce = async (number) => {
    await isParsed;
    return ready(number) || decode(`chunk-${number}`);
  };

  return { open, ready, load, loadOnce };
})();
