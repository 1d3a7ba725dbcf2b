"use strict";
// The table of samples: filters, two models side by side, and pages of rows.

(async () => {
  const index = await Store.open();
  const { questions, samples } = index;
  const form = document.getElementById("filters");
  const browser = document.getElementById("browser");
  const table = document.getElementById("table");
  const rows = document.getElementById("rows");
  const heads = document.getElementById("heads");
  const count = document.getElementById("count");
  const FIELDS = ["q", "answer", "source", "against", "relation", "task", "level", "outcome", "failure", "sort"];
  const RIGHT = 0.5;
  const ROWS = 50;
  const CHUNKS_AT_ONCE = 8;
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

  const field = {
    source: (sample) => index.sources[samples.source[sample]],
    task: (sample) => index.tasks[questions.task[index.owner[sample]]],
    level: (sample) => questions.level[index.owner[sample]],
    outcome: (sample) => index.outcomes[samples.outcome[sample]],
    failure: (sample) => index.failures[samples.failure[sample]],
  };
  // A sample can have several failures.
  const valuesOf = (name, sample) => {
    const value = field[name](sample);
    return name === "failure" ? value.split(", ").filter(Boolean) : value === null ? [] : [String(value)];
  };

  const addOptions = (name, first) => {
    const counts = new Map();
    for (let sample = 0; sample < index.total; sample += 1) {
      for (const value of valuesOf(name, sample)) counts.set(value, (counts.get(value) || 0) + 1);
    }
    const select = form.elements[name];
    select.append(new Option(first, ""));
    const byName = (a, b) => a[0].localeCompare(b[0], "en", { numeric: true });
    for (const [value, number] of [...counts].sort(byName)) {
      const text = name === "level" ? `level ${value}` : name === "outcome" ? value.replaceAll("_", " ") : value;
      select.append(new Option(`${text} (${number.toLocaleString("en")})`, value));
    }
    // One failure among other samples is still a choice.
    select.hidden = counts.size < (name === "failure" ? 1 : 2);
  };
  for (const name of Object.keys(field)) addOptions(name, `every ${name}`);

  const samplesOf = (question) => {
    const first = index.first[question];
    return Array.from({ length: questions.count[question] }, (_, place) => first + place);
  };

  // Sources that share a question can be compared.
  const shared = new Set();
  questions.task.forEach((_, question) => {
    const sources = new Set(samplesOf(question).map((sample) => samples.source[sample]));
    if (sources.size > 1) sources.forEach((source) => shared.add(index.sources[source]));
  });
  form.elements.against.append(new Option("compare with …", ""));
  for (const source of shared) form.elements.against.append(new Option(`against ${source}`, source));
  form.elements.against.hidden = !shared.size;
  for (const [value, text] of Object.entries(RELATIONS)) form.elements.relation.append(new Option(text, value));

  const isWanted = (values, names, sample) => names.every((name) => !values[name] || valuesOf(name, sample).includes(values[name]));

  // A question is right if at least half of its scored samples are.
  const isRight = (some) => {
    const scored = some.filter((sample) => samples.score[sample] !== null);
    return scored.length > 0 && scored.filter((sample) => samples.score[sample] >= RIGHT).length >= scored.length / 2;
  };

  const isRelated = (relation, inA, inB) =>
    ({ won: !inA && inB, lost: inA && !inB, right: inA && inB, wrong: !inA && !inB })[relation] ?? true;

  const pairsOf = (values) => {
    const pairs = [];
    questions.task.forEach((_, question) => {
      const all = samplesOf(question);
      const ofA = all.filter((sample) => field.source(sample) === values.source);
      const ofB = all.filter((sample) => field.source(sample) === values.against);
      if (!ofA.length || !ofB.length || !isRelated(values.relation, isRight(ofA), isRight(ofB))) return;
      if ([...ofA, ...ofB].some((sample) => isWanted(values, ["task", "level", "outcome", "failure"], sample))) pairs.push([ofA[0], ofB[0]]);
    });
    return pairs;
  };

  const ORDERS = {
    score: (a, b) => (samples.score[a[0]] ?? -1) - (samples.score[b[0]] ?? -1),
    "-score": (a, b) => (samples.score[b[0]] ?? -1) - (samples.score[a[0]] ?? -1),
    "-tokens": (a, b) => (samples.tokens[b[0]] ?? 0) - (samples.tokens[a[0]] ?? 0),
  };

  const matches = (texts, own, words, answer) => {
    if (answer && own.answer !== answer) return false;
    const all = [texts.question, texts.expected, own.thinking, own.reply, own.answer];
    return !words || all.some((text) => text?.toLowerCase().includes(words));
  };

  let searches = 0;

  // Reads all chunks once, some at a time, and shows how far it is. A newer search ends it.
  const searched = async (candidates, values) => {
    searches += 1;
    const turn = searches;
    const words = values.q.toLowerCase();
    if (!words && !values.answer) return candidates;
    const chunkOf = (row) => questions.chunk[index.owner[row[0]]];
    const numbers = [...new Set(candidates.map(chunkOf))];
    const kept = [];
    for (let start = 0; start < numbers.length; start += CHUNKS_AT_ONCE) {
      const some = numbers.slice(start, start + CHUNKS_AT_ONCE);
      const chunks = new Map();
      await Promise.all(some.map(async (number) => chunks.set(number, await Store.loadOnce(number))));
      if (turn !== searches) return null;
      for (const row of candidates.filter((candidate) => chunks.has(chunkOf(candidate)))) {
        const question = index.owner[row[0]];
        const texts = chunks.get(chunkOf(row))[index.inChunk[question]];
        const ownOf = (sample) => texts.samples[sample - index.first[question]];
        if (row.some((sample) => matches(texts, ownOf(sample), words, values.answer))) kept.push(row);
      }
      const share = Math.round((100 * (start + some.length)) / numbers.length);
      count.textContent = `searching: ${share}%, ${kept.length.toLocaleString("en")} found`;
    }
    return kept;
  };

  const valuesNow = () => Object.fromEntries(FIELDS.map((name) => [name, form.elements[name].value.trim()]));

  const apply = async () => {
    const values = valuesNow();
    isPaired = Boolean(values.source && values.against && values.source !== values.against);
    form.elements.relation.hidden = !isPaired;
    let candidates = [];
    if (isPaired) candidates = pairsOf(values);
    else for (let sample = 0; sample < index.total; sample += 1) if (isWanted(values, Object.keys(field), sample)) candidates.push([sample]);
    candidates = await searched(candidates, values);
    if (candidates === null) return;
    if (ORDERS[values.sort]) candidates.sort(ORDERS[values.sort]);
    found = candidates;
    active = -1;
    firstRow = 0;
    const of = isPaired ? "questions of both" : `of ${index.total.toLocaleString("en")}`;
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
    browser.classList.toggle("one-source", index.sources.length < 2);
  };

  const scoreCell = (sample) => {
    const value = samples.score[sample];
    return cell(`score ${value === null ? "" : value >= RIGHT ? "right" : "not-right"}`, Detail.score(index, sample));
  };

  const fillRow = async (row, place) => {
    const [sample, other] = found[place];
    const question = index.owner[sample];
    const isContinued = !isPaired && place > firstRow && index.owner[found[place - 1][0]] === question;
    const level = questions.level[question];
    const number = `sample ${sample - index.first[question] + 1} of ${questions.count[question]}`;
    const about = cell("task", isContinued ? "" : index.tasks[questions.task[question]]);
    about.append(Page.element("small", "", isContinued ? number : level === null ? "" : ` level ${level}`));
    row.classList.toggle("grouped", !isPaired && questions.count[question] > 1);
    const chunk = await Store.load(questions.chunk[question]);
    const texts = chunk[index.inChunk[question]];
    const ownAnswer = (of) => cell("answer own", flat(texts.samples[of - index.first[question]].answer));
    const reference = cell("answer reference", isContinued ? "" : flat(texts.expected));
    row.replaceChildren(about, cell("question", isContinued ? "" : flat(Detail.asked(texts))));
    if (isPaired) {
      row.append(reference, ownAnswer(sample), scoreCell(sample), ownAnswer(other), scoreCell(other));
      return;
    }
    const outcome = cell("outcome");
    outcome.append(Detail.badge(index, sample));
    row.append(ownAnswer(sample), reference, scoreCell(sample), outcome, cell("failure", field.failure(sample)));
    row.append(cell("tokens", Page.number(samples.tokens[sample])), cell("source", field.source(sample)));
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
    Detail.show(index, shown, {
      // Of two samples side by side, the one of the same source changes.
      choose: (sample) =>
        showSamples(shown.length < 2 ? [sample] : shown.map((known) => (samples.source[known] === samples.source[sample] ? sample : known))),
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
    const [source, against] = state.has("source") ? [] : Runs.curves.compared;
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
