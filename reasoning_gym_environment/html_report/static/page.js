"use strict";
// What all scripts of the page share: elements, colours, the state in the address, and sortable tables of numbers.
// Everything from a file goes into the page as text (textContent), never as markup.

const Page = (() => {
  const root = document.documentElement;

  const element = (name, className, text) => {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  };

  const button = (className, text, onClick) => {
    const made = element("button", className, text);
    made.type = "button";
    made.addEventListener("click", onClick);
    return made;
  };

  const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)}%`);
  const number = (value) => {
    if (value === null || value === undefined) return "–";
    return value.toLocaleString("en", { maximumFractionDigits: Math.abs(value) >= 100 ? 0 : 2 });
  };

  // A canvas needs a plain colour, and the variables of the page depend on the scheme.
  const colour = (name) => {
    const probe = element("i");
    probe.style.color = `var(--${name})`;
    document.body.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  };

  const onThemeChange = [];
  const themeChanged = () => onThemeChange.forEach((listener) => listener());
  const dark = matchMedia("(prefers-color-scheme: dark)");
  document.getElementById("theme").addEventListener("click", () => {
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : dark.matches;
    root.dataset.theme = isDark ? "light" : "dark";
    themeChanged();
  });
  dark.addEventListener("change", themeChanged);

  // --- the state in the address: #samples?task=gcd&outcome=wrong opens the page with these filters

  const state = () => new URLSearchParams(location.hash.split("?")[1] || "");

  const remember = (values) => {
    const [anchor] = location.hash.slice(1).split("?");
    const next = state();
    for (const [name, value] of Object.entries(values)) {
      if (value === "") next.delete(name);
      else next.set(name, value);
    }
    const query = next.toString();
    history.replaceState(null, "", query ? `#${anchor || "main"}?${query}` : `#${anchor}`);
  };

  const onStateChange = [];
  const goToAnchor = () => {
    const [anchor, query] = location.hash.slice(1).split("?");
    // The browser itself finds an anchor without a query.
    if (query) document.getElementById(anchor)?.scrollIntoView();
  };
  addEventListener("hashchange", () => {
    onStateChange.forEach((listener) => listener());
    goToAnchor();
  });
  addEventListener("load", goToAnchor);

  // --- sortable tables

  // An unknown number is below all others. A text that cannot be compared with a number would spoil the order.
  const valueOf = (cell) => {
    const text = cell.textContent.trim();
    if (text === "–" || text === "") return -Infinity;
    const value = parseFloat(text);
    return Number.isNaN(value) ? text : value;
  };

  const sortBy = (head) => {
    const body = head.closest("table").tBodies[0];
    const isUp = head.getAttribute("aria-sort") === "descending";
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", isUp ? "ascending" : "descending");
    body.querySelectorAll(".card").forEach((card) => card.remove());
    body.querySelectorAll(".opener").forEach((opener) => opener.setAttribute("aria-expanded", "false"));
    const rows = [...body.rows];
    rows.sort((first, second) => {
      const x = valueOf(first.cells[head.cellIndex]);
      const y = valueOf(second.cells[head.cellIndex]);
      const order = x < y ? -1 : x > y ? 1 : 0;
      return isUp ? order : -order;
    });
    body.append(...rows);
  };
  for (const sorter of document.querySelectorAll(".sortable thead button")) {
    sorter.addEventListener("click", () => sortBy(sorter.parentElement));
  }

  return { element, button, percent, number, colour, onThemeChange, state, remember, onStateChange };
})();
