"use strict";
// Follows a run: asks the server of this page every few seconds whether its files have changed.

(() => {
  const EVERY_MS = 5000;
  // Whoever reads a sample or types keeps the page until the reader asks for the new one.
  const QUIET_MS = 20000;
  const news = document.getElementById("news");
  let version = null;
  let lastTouch = -Infinity;

  for (const name of ["pointerdown", "keydown", "wheel"]) {
    addEventListener(name, () => { lastTouch = performance.now(); }, { passive: true });
  }

  const isReading = () => {
    const detail = document.getElementById("detail");
    return (detail && !detail.hidden) || performance.now() - lastTouch < QUIET_MS;
  };

  const offer = () => {
    const refresh = document.createElement("button");
    refresh.type = "button";
    refresh.textContent = "new results: show";
    refresh.addEventListener("click", () => location.reload());
    if (!news.firstElementChild) news.replaceChildren(refresh);
  };

  const ask = async () => {
    try {
      const found = await (await fetch("/version")).text();
      if (version === null) version = found;
      else if (found !== version && !isReading()) location.reload();
      else if (found !== version) offer();
      else news.textContent = "live";
    } catch {
      news.textContent = "the command has ended";
    }
  };

  ask();
  setInterval(ask, EVERY_MS);
})();
