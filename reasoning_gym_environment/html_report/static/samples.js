"use strict";
// The table of samples: filters, two models side by side, and pages of rows.

(async () => {
  const questions = await Store.open();
  const samples = questions.flatMap((question) => question.samples);
  const form = document.getElementById("filters");
  const browser = document.getElementById("browser");
  const table = document.getElementById("table");
  const rows = document.getElementById("rows");
  const heads = document.getElementById("heads");
  const count = document.getElementById("count");
  const FIELDS = ["q", "source", "against", "relation", "task", "level", "outcome", "failure", "sort"];
  const RIGHT = 0.5;
  const ROWS = 50;
  // A search shows how far it is after so many rows.
  const SEARCHED = 500;
  const RELATIONS = {
    "": "all questions of both",
    won: "wrong in A, right in B",
    lost: "right in A, wrong in B",
    right: "right in both",
    wrong: "wrong in both",
  };

  // A row is one sample, or a pair: a question with a sample of each of two sources.
  let found = [];
  let isPaired = false;
  let active = -1;
  let firstRow = 0;

  // --- filters

  // The values of a sample that a filter can choose. A sample can have several failures.
  const VALUES = {
    source: (sample) => [sample.source],
    task: (sample) => [sample.question.task],
    level: (sample) => (sample.question.level === null ? [] : [String(sample.question.level)]),
    outcome: (sample) => [sample.outcome],
    failure: (sample) => sample.failures,
  };

  const addOptions = (name) => {
    const counts = new Map();
    for (const value of samples.flatMap(VALUES[name])) counts.set(value, (counts.get(value) || 0) + 1);
    const select = form.elements[name];
    select.append(new Option(`every ${name}`, ""));
    const byName = (a, b) => a[0].localeCompare(b[0], "en", { numeric: true });
    for (const [value, number] of [...counts].sort(byName)) {
      const text = name === "level" ? `level ${value}` : name === "outcome" ? value.replaceAll("_", " ") : value;
      select.append(new Option(`${text} (${number.toLocaleString("en")})`, value));
    }
    // One failure among other samples is still a choice.
    select.hidden = counts.size < (name === "failure" ? 1 : 2);
  };
  Object.keys(VALUES).forEach(addOptions);
  const hasOneSource = form.elements.source.hidden;

  // Sources that share a question can be compared.
  const shared = new Set();
  for (const question of questions) {
    const sources = new Set(question.samples.map((sample) => sample.source));
    if (sources.size > 1) sources.forEach((source) => shared.add(source));
  }
  form.elements.against.append(new Option("compare with …", ""));
  for (const source of shared) form.elements.against.append(new Option(`against ${source}`, source));
  form.elements.against.hidden = !shared.size;
  for (const [value, text] of Object.entries(RELATIONS)) form.elements.relation.append(new Option(text, value));

  const isWanted = (values, names, sample) => names.every((name) => !values[name] || VALUES[name](sample).includes(values[name]));

  // A question is right if at least half of its scored samples are.
  const isRight = (some) => {
    const scored = some.filter((sample) => sample.score !== null);
    return scored.length > 0 && scored.filter((sample) => sample.score >= RIGHT).length >= scored.length / 2;
  };

  const isRelated = (relation, inA, inB) =>
    ({ won: !inA && inB, lost: inA && !inB, right: inA && inB, wrong: !inA && !inB })[relation] ?? true;

  const pairsOf = (values) => {
    const pairs = [];
    for (const question of questions) {
      const ofA = question.samples.filter((sample) => sample.source === values.source);
      const ofB = question.samples.filter((sample) => sample.source === values.against);
      if (!ofA.length || !ofB.length || !isRelated(values.relation, isRight(ofA), isRight(ofB))) continue;
      if ([...ofA, ...ofB].some((sample) => isWanted(values, ["task", "level", "outcome", "failure"], sample))) pairs.push([ofA[0], ofB[0]]);
    }
    return pairs;
  };

  const ORDERS = {
    score: (a, b) => (a[0].score ?? -1) - (b[0].score ?? -1),
    "-score": (a, b) => (b[0].score ?? -1) - (a[0].score ?? -1),
    "-tokens": (a, b) => (b[0].tokens ?? 0) - (a[0].tokens ?? 0),
  };

  const matches = (texts, own, words) => {
    const all = [texts.question, texts.expected, own.thinking, own.reply, own.answer];
    return all.some((text) => text?.toLowerCase().includes(words));
  };

  let searches = 0;

  // Reads the texts of all candidates, and shows how far it is. A newer search ends it.
  const searched = async (candidates, values) => {
    searches += 1;
    const turn = searches;
    const words = values.q.toLowerCase();
    if (!words) return candidates;
    const kept = [];
    for (const [place, row] of candidates.entries()) {
      const texts = await Store.load(row[0].question);
      if (turn !== searches) return null;
      if (row.some((sample) => matches(texts, texts.samples[sample.place], words))) kept.push(row);
      if (place % SEARCHED === 0) {
        const share = Math.round((100 * place) / candidates.length);
        count.textContent = `searching: ${share}%, ${kept.length.toLocaleString("en")} found`;
      }
    }
    return kept;
  };

  const valuesNow = () => Object.fromEntries(FIELDS.map((name) => [name, form.elements[name].value.trim()]));

  const apply = async () => {
    const values = valuesNow();
    isPaired = Boolean(values.source && values.against && values.source !== values.against);
    form.elements.relation.hidden = !isPaired;
    const isChosen = (sample) => isWanted(values, Object.keys(VALUES), sample);
    const candidates = isPaired ? pairsOf(values) : samples.filter(isChosen).map((sample) => [sample]);
    const kept = await searched(candidates, values);
    if (kept === null) return;
    if (ORDERS[values.sort]) kept.sort(ORDERS[values.sort]);
    found = kept;
    active = -1;
    firstRow = 0;
    const of = isPaired ? "questions of both" : `of ${samples.length.toLocaleString("en")}`;
    count.textContent = `${found.length.toLocaleString("en")} ${of}`;
    showHeads(values);
    closeDetail();
    draw();
  };

  // --- rows

  const flat = (text) => (text ?? "").replace(/\s+/g, " ").trim().slice(0, 300);

  const cell = (className, text) => {
    const made = Page.element("span", className, text);
    made.setAttribute("role", "gridcell");
    return made;
  };

  const showHeads = (values) => {
    const names = isPaired
      ? [["task", "task"], ["question", "question"], ["answer", "expected answer"], ["answer", `A: ${values.source}`], ["score", ""], ["answer", `B: ${values.against}`], ["score", ""]]
      : ["task", "question", "model's answer", "expected answer", "score", "outcome", "failure", "tokens", "source"].map((name) => [name, name]);
    heads.replaceChildren(...names.map(([className, text]) => Page.element("span", className, text)));
    browser.classList.toggle("paired", isPaired);
    browser.classList.toggle("one-source", hasOneSource);
  };

  const scoreCell = ({ score }) => cell(`score ${score === null ? "" : score >= RIGHT ? "right" : "not-right"}`, Page.number(score));

  const fillRow = async (row, place) => {
    const [sample, other] = found[place];
    const { question } = sample;
    const isContinued = !isPaired && place > firstRow && found[place - 1][0].question === question;
    const number = `sample ${sample.place + 1} of ${question.samples.length}`;
    const about = cell("task", isContinued ? "" : question.task);
    about.append(Page.element("small", "", isContinued ? number : question.level === null ? "" : ` level ${question.level}`));
    row.classList.toggle("grouped", !isPaired && question.samples.length > 1);
    const texts = await Store.load(question);
    const ownAnswer = (of) => cell("answer own", flat(texts.samples[of.place].answer));
    const reference = cell("answer reference", isContinued ? "" : flat(texts.expected));
    row.replaceChildren(about, cell("question", isContinued ? "" : flat(texts.question)));
    if (isPaired) {
      row.append(reference, ownAnswer(sample), scoreCell(sample), ownAnswer(other), scoreCell(other));
      return;
    }
    const outcome = cell("outcome");
    outcome.append(Detail.badge(sample));
    row.append(ownAnswer(sample), reference, scoreCell(sample), outcome, cell("failure", sample.failures.join(", ")));
    row.append(cell("tokens", Page.number(sample.tokens)), cell("source", sample.source));
  };

  const turnTo = (row) => {
    firstRow = row;
    table.scrollTop = 0;
    draw();
  };

  const draw = () => {
    const last = Math.min(found.length, firstRow + ROWS);
    const made = [];
    for (let place = firstRow; place < last; place += 1) {
      const row = Page.element("div", "row", "…");
      row.id = `row-${place}`;
      row.setAttribute("role", "row");
      row.setAttribute("aria-rowindex", String(place + 1));
      row.setAttribute("aria-selected", String(place === active));
      row.addEventListener("click", () => openRow(place));
      fillRow(row, place);
      made.push(row);
    }
    const pager = Page.element("div", "pager");
    const earlier = Page.button("", "earlier rows", () => turnTo(firstRow - ROWS));
    const later = Page.button("", "further rows", () => turnTo(firstRow + ROWS));
    earlier.disabled = firstRow === 0;
    later.disabled = last === found.length;
    pager.append(earlier, `${last && firstRow + 1} to ${last}`, later);
    rows.replaceChildren(...made, ...(found.length > ROWS ? [pager] : []));
    table.setAttribute("aria-rowcount", String(found.length));
    table.setAttribute("aria-activedescendant", active < 0 ? "" : `row-${active}`);
  };

  // --- one sample

  const closeDetail = () => {
    Detail.hide();
    browser.classList.remove("open");
    Page.remember({ open: "" });
  };

  const close = () => {
    closeDetail();
    table.focus();
  };

  const select = (place) => {
    if (!found.length) return;
    active = Math.max(0, Math.min(found.length - 1, place));
    firstRow = active - (active % ROWS);
    draw();
    document.getElementById(`row-${active}`).scrollIntoView({ block: "nearest" });
  };

  const openRow = (place) => {
    select(place);
    browser.classList.add("open");
    Page.remember({ open: String(active) });
    showSamples(found[active]);
  };

  const showSamples = (shown) =>
    Detail.show(shown, {
      // Of two samples side by side, the one of the same source changes.
      choose: (sample) => showSamples(shown.length < 2 ? [sample] : shown.map((known) => (known.source === sample.source ? sample : known))),
      step: (by) => openRow(active + by),
      close,
    });

  table.addEventListener("keydown", (event) => {
    const to = { ArrowDown: active + 1, ArrowUp: active - 1, PageDown: active + ROWS, PageUp: active - ROWS }[event.key];
    if (event.target.closest("button")) return;
    if (event.key === "Enter" && active >= 0) openRow(active);
    else if (to === undefined) return;
    else if (browser.classList.contains("open")) openRow(to);
    else select(to);
    event.preventDefault();
  });
  browser.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && browser.classList.contains("open")) close();
  });

  // --- the state in the address

  // The page of a comparison begins with its two sources side by side.
  const show = async () => {
    const state = Page.state();
    const [source, against] = state.has("source") ? [] : Runs.compared;
    const defaults = { source, against };
    for (const name of FIELDS) form.elements[name].value = state.get(name) ?? defaults[name] ?? "";
    const opened = state.get("open");
    await apply();
    if (opened !== null && found[Number(opened)]) openRow(Number(opened));
    // The rows have moved what is below them.
    if (location.hash.startsWith("#samples?")) document.getElementById("samples").scrollIntoView();
  };

  let waiting = 0;
  const onInput = (event) => {
    Page.remember(valuesNow());
    clearTimeout(waiting);
    // A search reads all texts, so it waits until the reader has typed.
    waiting = setTimeout(apply, event.target?.tagName === "INPUT" ? 250 : 0);
  };
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", onInput);
  form.addEventListener("reset", () => setTimeout(onInput, 0, {}));
  Page.onStateChange.push(show);
  await show();
})().catch((error) => {
  document.getElementById("count").textContent = `This browser cannot show the samples: ${error.message}`;
  throw error;
});
