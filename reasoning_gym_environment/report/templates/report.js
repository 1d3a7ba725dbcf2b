"use strict";
// Everything from a file goes into the page as text (textContent), never as markup.
(() => {
  const PAGE = 40;
  const rollouts = JSON.parse(document.getElementById("data").textContent);
  const form = document.getElementById("filters");
  const list = document.getElementById("list");
  const more = document.getElementById("more");
  const fields = ["source", "category", "task", "outcome"];
  let found = [], shown = 0;

  const element = (name, className, text) => {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  };

  for (const field of fields) {
    const counts = new Map();
    for (const one of rollouts) counts.set(one[field], (counts.get(one[field]) || 0) + 1);
    const select = form.elements[field];
    select.append(new Option(`every ${field}`, ""));
    for (const [value, count] of [...counts].sort((a, b) => (a[0] < b[0] ? -1 : 1))) {
      select.append(new Option(`${value || "none"} (${count})`, value));
    }
    select.hidden = counts.size < 2;
  }

  const part = (title, text, parent) => {
    parent.append(element("h3", "", title), element("pre", "", text || "(empty)"));
  };

  const fill = (one, body) => {
    part("Question", one.question, body);
    if (one.thinking) {
      const thinking = element("details");
      thinking.append(element("summary", "", `Thinking (${one.thinking.length} characters)`), element("pre", "", one.thinking));
      body.append(thinking);
    }
    part("Reply", one.reply, body);
    const answers = element("div", "answers");
    const read = element("div"), expected = element("div");
    part("Answer read", one.answer, read);
    part("Oracle's answer", one.expected, expected);
    answers.append(read, expected);
    body.append(answers);
    const facts = [one.source, one.finish && `finished: ${one.finish}`, one.detail, one.level === null ? "" : `level ${one.level}`];
    body.append(element("p", "facts", facts.filter(Boolean).join(" · ")));
  };

  const rollout = (one) => {
    const details = element("details", "rollout");
    const summary = element("summary");
    const outcome = element("span", "badge", one.outcome || "unknown");
    if (/^[a-z_]+$/.test(one.outcome)) outcome.classList.add(one.outcome);
    const score = one.score === null ? "unscored" : one.score.toFixed(2);
    summary.append(element("b", "", one.task), outcome, element("span", "", score), element("span", "gist", one.question.slice(0, 160)));
    if (one.tokens !== null) summary.append(element("span", "badge", `${one.tokens} tokens`));
    details.append(summary);
    details.addEventListener("toggle", () => {
      if (details.open && details.children.length === 1) {
        const body = element("div", "body");
        fill(one, body);
        details.append(body);
      }
    });
    return details;
  };

  const showMore = () => {
    for (const one of found.slice(shown, shown + PAGE)) list.append(rollout(one));
    shown = Math.min(found.length, shown + PAGE);
    more.hidden = shown >= found.length;
  };

  const order = {
    "score": (a, b) => (a.score ?? -1) - (b.score ?? -1),
    "-score": (a, b) => (b.score ?? -1) - (a.score ?? -1),
    "-tokens": (a, b) => (b.tokens ?? 0) - (a.tokens ?? 0),
  };

  const apply = () => {
    const words = form.elements.q.value.toLowerCase();
    found = rollouts.filter((one) =>
      fields.every((field) => !form.elements[field].value || one[field] === form.elements[field].value) &&
      (!words || [one.question, one.thinking, one.reply, one.answer, one.expected, one.task].some((text) => text.toLowerCase().includes(words))));
    const by = order[form.elements.sort.value];
    if (by) found.sort(by);
    document.getElementById("count").textContent = `${found.length} of ${rollouts.length}`;
    list.replaceChildren();
    shown = 0;
    showMore();
  };

  // #rollouts?task=gcd&q=word opens the page with its filters set; &open=1 unfolds the first rollout.
  const [anchor, query] = location.hash.slice(1).split("?");
  const given = new URLSearchParams(query || "");
  for (const name of ["q", "sort", ...fields]) if (given.has(name)) form.elements[name].value = given.get(name);
  const remember = () => {
    const state = new URLSearchParams();
    for (const name of ["q", "sort", ...fields]) if (form.elements[name].value) state.set(name, form.elements[name].value);
    history.replaceState(null, "", `#rollouts${[...state].length ? "?" + state : ""}`);
  };

  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", () => { apply(); remember(); });
  form.addEventListener("reset", () => setTimeout(() => { apply(); remember(); }));
  more.addEventListener("click", showMore);

  const root = document.documentElement;
  const isDark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  document.getElementById("theme").addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; });
  if (["light", "dark"].includes(given.get("theme"))) root.dataset.theme = given.get("theme");

  // An unknown number is below all others. A text that cannot be compared with a number would spoil the order.
  const value = (cell) => {
    const text = cell.textContent.trim();
    if (text === "–" || text === "") return -Infinity;
    const number = parseFloat(text);
    return Number.isNaN(number) ? text : number;
  };
  for (const button of document.querySelectorAll(".sortable thead button")) {
    const head = button.parentElement;
    button.addEventListener("click", () => {
      const table = head.closest("table"), column = head.cellIndex;
      const up = head.getAttribute("aria-sort") === "descending";
      for (const other of table.querySelectorAll("thead th")) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const rows = [...table.tBodies[0].rows].sort((a, b) => {
        const [x, y] = [value(a.cells[column]), value(b.cells[column])];
        return (x < y ? -1 : x > y ? 1 : 0) * (up ? 1 : -1);
      });
      table.tBodies[0].append(...rows);
    });
  }

  apply();
  if (given.get("open")) list.querySelectorAll("details").forEach((one, place) => { if (place < Number(given.get("open"))) one.open = true; });
  if (query) document.getElementById(anchor)?.scrollIntoView();
})();
