"use strict";
// The samples: an index, decoded at once, and texts in compressed chunks, decoded when they are looked at.

const Store = (() => {
  // The number of questions in a chunk, as in samples.py.
  const CHUNK = 16;
  // Decoded chunks that stay in memory.
  const KEPT_CHUNKS = 40;

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

  // Resolves to all questions. Each has its `number`, and each of its samples has its `question` and its `place` in it.
  const open = async () => {
    const questions = await decode("index");
    questions.forEach((question, number) => {
      question.number = number;
      question.samples.forEach((sample, place) => Object.assign(sample, { question, place }));
    });
    return questions;
  };

  // In the order of the last use.
  const chunks = new Map();

  // Resolves to the texts of a question and its samples.
  const load = async (question) => {
    await isParsed;
    const number = Math.floor(question.number / CHUNK);
    const chunk = chunks.get(number) || decode(`chunk-${number}`);
    chunks.delete(number);
    chunks.set(number, chunk);
    if (chunks.size > KEPT_CHUNKS) chunks.delete(chunks.keys().next().value);
    return (await chunk)[question.number % CHUNK];
  };

  return { open, load };
})();
