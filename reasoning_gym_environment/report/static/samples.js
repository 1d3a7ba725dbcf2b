"use strict";
// The table of samples: filters, two models side by side, and rows that exist only while they are in view.

(async () => {
  const index = await Store.open();
  const { questions, samples } = index;
  const form = document.getElementById("filters");
  const browser = document.getElementById("browser");
  const table = document.getElementById("table");
  const rows = document.getElementById("rows");
  const heads = document.getElementById("heads");
  const count = document.getElementById("count");
  const FIELDS = ["q", "answer", "source", "against", "relation", "task", "level", "outcome", "failure", "from", "to", "sort"];
  const RIGHT = 0.5;
  const SPARE_ROWS = 6;
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

  // --- filters

  const option = (select, text, value) => select.append(new Option(text, value));

  const addOptions = (name, first, counts, text = (value) => value) => {
    const select = form.elements[name];
    option(select, first, "");
    for (const [value, number] of counts) option(select, `${text(value)} (${number.toLocaleString("en")})`, value);
    select.hidden = counts.length < 2;
  };

  const counted = (valueOf) => {
    const counts = new Map();
    for (let sample = 0; sample < index.total; sample += 1) {
      for (const value of valueOf(sample)) counts.set(value, (counts.get(value) || 0) + 1);
    }
    const byName = (a, b) => String(a[0]).localeCompare(String(b[0]), "en", { numeric: true });
    return [...counts].sort(byName);
  };

  const failuresOf = (sample) => index.failures[samples.failure[sample]].split(", ").filter(Boolean);
  // A group of training has its own step, and the sample of an evaluation that of its evaluation.
  const stepOf = (sample) => questions.step[index.owner[sample]] ?? index.steps[samples.source[sample]] ?? null;
  const levelOf = (sample) => questions.level[index.owner[sample]];

  addOptions("source", "every source", counted((sample) => [index.sources[samples.source[sample]]]));
  addOptions("task", "every task", counted((sample) => [index.tasks[questions.task[index.owner[sample]]]]));
  addOptions("level", "every level", counted((sample) => (levelOf(sample) === null ? [] : [String(levelOf(sample))])), (value) => `level ${value}`);
  addOptions("outcome", "every outcome", counted((sample) => [index.outcomes[samples.outcome[sample]]]), (value) => value.replaceAll("_", " "));
  addOptions("failure", "every failure", counted(failuresOf));
  // One failure among other samples is still a choice.
  form.elements.failure.hidden = form.elements.failure.options.length < 2;
  form.querySelector(".steps").hidden = ![...index.steps, ...(questions.step || [])].some((step) => step !== null);

  // Sources that share a question can be compared.
  const partners = new Map(index.sources.map((_, source) => [source, new Set()]));
  for (let question = 0; question + 1 < index.first.length; question += 1) {
    const asked = new Set(samples.source.slice(index.first[question], index.first[question + 1]));
    for (const source of asked) asked.forEach((other) => other !== source && partners.get(source).add(other));
  }
  option(form.elements.against, "compare with …", "");
  for (const [source, others] of partners) {
    if (others.size) option(form.elements.against, `against ${index.sources[source]}`, index.sources[source]);
  }
  form.elements.against.hidden = form.elements.against.options.length < 3;
  for (const [value, text] of Object.entries(RELATIONS)) option(form.elements.relation, text, value);

  const passes = (values) => {
    const source = values.source ? index.sources.indexOf(values.source) : null;
    const task = values.task ? index.tasks.indexOf(values.task) : null;
    const outcome = values.outcome ? index.outcomes.indexOf(values.outcome) : null;
    return (sample, isSourceFree) => {
      const question = index.owner[sample];
      if (source !== null && !isSourceFree && samples.source[sample] !== source) return false;
      if (task !== null && questions.task[question] !== task) return false;
      if (values.level && String(questions.level[question]) !== values.level) return false;
      if (outcome !== null && samples.outcome[sample] !== outcome) return false;
      if (values.failure && !failuresOf(sample).includes(values.failure)) return false;
      const step = stepOf(sample);
      if (values.from && !(step !== null && step >= Number(values.from))) return false;
      if (values.to && !(step !== null && step <= Number(values.to))) return false;
      return true;
    };
  };

  // A question is right if at least half of its scored samples are.
  const isRight = (some) => {
    const scored = some.filter((sample) => samples.score[sample] !== null);
    return scored.length > 0 && scored.filter((sample) => samples.score[sample] >= RIGHT).length >= scored.length / 2;
  };

  const isRelated = (relation, rightInA, rightInB) => {
    if (relation === "won") return !rightInA && rightInB;
    if (relation === "lost") return rightInA && !rightInB;
    if (relation === "right") return rightInA && rightInB;
    if (relation === "wrong") return !rightInA && !rightInB;
    return true;
  };

  const pairsOf = (values, isWanted) => {
    const a = index.sources.indexOf(values.source);
    const b = index.sources.indexOf(values.against);
    const pairs = [];
    for (let question = 0; question + 1 < index.first.length; question += 1) {
      const ofA = [];
      const ofB = [];
      for (let sample = index.first[question]; sample < index.first[question + 1]; sample += 1) {
        if (samples.source[sample] === a) ofA.push(sample);
        if (samples.source[sample] === b) ofB.push(sample);
      }
      if (!ofA.length || !ofB.length) continue;
      if (![...ofA, ...ofB].some((sample) => isWanted(sample, true))) continue;
      if (isRelated(values.relation, isRight(ofA), isRight(ofB))) pairs.push([ofA[0], ofB[0]]);
    }
    return pairs;
  };

  const ORDERS = {
    score: (a, b) => (samples.score[a[0]] ?? -1) - (samples.score[b[0]] ?? -1),
    "-score": (a, b) => (samples.score[b[0]] ?? -1) - (samples.score[a[0]] ?? -1),
    "-tokens": (a, b) => (samples.tokens[b[0]] ?? 0) - (samples.tokens[a[0]] ?? 0),
  };

  const matches = (texts, own, words, answer) => {
    if (answer && own.answer !== answer) return false;
    if (!words) return true;
    return [texts.question, texts.expected, own.thinking, own.reply, own.answer].some((text) => text?.toLowerCase().includes(words));
  };

  let searches = 0;

  // Reads all chunks once, some at a time, and shows how far it is. A newer search ends it.
  const searched = async (candidates, values) => {
    searches += 1;
    const turn = searches;
    const words = values.q.toLowerCase();
    if (!words && !values.answer) return candidates;
    const byChunk = new Map();
    for (const row of candidates) {
      const chunk = questions.chunk[index.owner[row[0]]];
      if (!byChunk.has(chunk)) byChunk.set(chunk, []);
      byChunk.get(chunk).push(row);
    }
    const numbers = [...byChunk.keys()];
    const kept = [];
    for (let start = 0; start < numbers.length; start += CHUNKS_AT_ONCE) {
      const some = numbers.slice(start, start + CHUNKS_AT_ONCE);
      const chunks = await Promise.all(some.map(Store.loadOnce));
      if (turn !== searches) return null;
      some.forEach((number, place) => {
        for (const row of byChunk.get(number)) {
          const question = index.owner[row[0]];
          const texts = chunks[place][index.inChunk[question]];
          const ownOf = (sample) => texts.samples[sample - index.first[question]];
          if (row.some((sample) => matches(texts, ownOf(sample), words, values.answer))) kept.push(row);
        }
      });
      const share = Math.round((100 * (start + some.length)) / numbers.length);
      count.textContent = `searching: ${share}%, ${kept.length.toLocaleString("en")} found`;
    }
    return kept;
  };

  const valuesNow = () => Object.fromEntries(FIELDS.map((name) => [name, form.elements[name]?.value.trim() ?? ""]));

  const apply = async () => {
    const values = valuesNow();
    isPaired = Boolean(values.source && values.against && values.source !== values.against);
    form.elements.relation.hidden = !isPaired;
    const isWanted = passes(values);
    let candidates = [];
    if (isPaired) candidates = pairsOf(values, isWanted);
    else for (let sample = 0; sample < index.total; sample += 1) if (isWanted(sample, false)) candidates.push([sample]);
    candidates = await searched(candidates, values);
    if (candidates === null) return;
    if (ORDERS[values.sort]) candidates.sort(ORDERS[values.sort]);
    found = candidates;
    const of = isPaired ? "questions of both" : `of ${index.total.toLocaleString("en")}`;
    count.textContent = `${found.length.toLocaleString("en")} ${of}`;
    active = -1;
    table.scrollTop = 0;
    table.setAttribute("aria-rowcount", String(found.length));
    showHeads(values);
    closeDetail();
    draw();
  };

  // --- rows

  const rowHeight = () => parseFloat(getComputedStyle(table).getPropertyValue("--row"));

  const flat = (text) => text.replace(/\s+/g, " ").trim().slice(0, 300);

  const answerOf = (own) => (own.answer === null ? "" : flat(own.answer));

  const cell = (className, text) => {
    const made = Page.element("span", className, text);
    made.setAttribute("role", "gridcell");
    return made;
  };

  const showHeads = (values) => {
    const names = isPaired
      ? [["task", "task"], ["question", "question"], ["answer", "reference"], ["answer", `A: ${values.source}`], ["score", ""], ["answer", `B: ${values.against}`], ["score", ""]]
      : [["task", "task"], ["question", "question"], ["answer", "model's answer"], ["answer", "reference"], ["score", "score"], ["outcome", "outcome"], ["failure", "failure"], ["tokens", "tokens"], ["source", "source"]];
    heads.replaceChildren(...names.map(([className, text]) => Page.element("span", className, text)));
    browser.classList.toggle("paired", isPaired);
    browser.classList.toggle("one-source", index.sources.length < 2);
  };

  const scoreCell = (sample) => {
    const made = cell("score", Detail.score(index, sample));
    const value = samples.score[sample];
    if (value !== null) made.classList.add(value >= RIGHT ? "right" : "not-right");
    return made;
  };

  const fillRow = (row, place) => {
    const [sample, other] = found[place];
    const question = index.owner[sample];
    const chunk = Store.ready(questions.chunk[question]);
    const texts = chunk && chunk[index.inChunk[question]];
    const own = texts && texts.samples[sample - index.first[question]];
    const task = index.tasks[questions.task[question]];
    const level = questions.level[question];
    const isContinued = !isPaired && place > 0 && index.owner[found[place - 1][0]] === question;
    const goesOn = !isPaired && place + 1 < found.length && index.owner[found[place + 1][0]] === question;
    row.classList.toggle("continued", isContinued);
    row.classList.toggle("grouped", isContinued || goesOn);
    const about = cell("task", isContinued ? "" : task);
    if (!isContinued && level !== null) about.append(Page.element("small", "", ` level ${level}`));
    row.append(about, cell("question", isContinued ? "" : texts ? flat(Detail.asked(texts)) : "…"));
    const reference = cell("answer", texts && !isContinued ? flat(texts.expected) : "");
    if (isPaired) {
      const otherOwn = texts && texts.samples[other - index.first[question]];
      row.append(reference, cell("answer", own ? answerOf(own) : ""), scoreCell(sample));
      row.append(cell("answer", otherOwn ? answerOf(otherOwn) : ""), scoreCell(other));
      return;
    }
    const outcome = cell("outcome");
    outcome.append(Detail.badge(index, sample));
    const tokens = samples.tokens[sample];
    row.append(cell("answer own", own ? answerOf(own) : ""), reference, scoreCell(sample), outcome);
    row.append(cell("failure", index.failures[samples.failure[sample]]), cell("tokens", tokens === null ? "" : Page.number(tokens)));
    row.append(cell("source", index.sources[samples.source[sample]]));
  };

  const draw = () => {
    const height = rowHeight();
    rows.style.height = `${found.length * height}px`;
    const first = Math.max(0, Math.floor(table.scrollTop / height) - SPARE_ROWS);
    const last = Math.min(found.length, Math.ceil((table.scrollTop + table.clientHeight) / height) + SPARE_ROWS);
    const made = [];
    const missing = new Set();
    for (let place = first; place < last; place += 1) {
      const row = Page.element("div", "row");
      row.id = `row-${place}`;
      row.dataset.place = place;
      row.style.top = `${place * height}px`;
      row.setAttribute("role", "row");
      row.setAttribute("aria-rowindex", String(place + 1));
      row.setAttribute("aria-selected", String(place === active));
      fillRow(row, place);
      made.push(row);
      const chunk = questions.chunk[index.owner[found[place][0]]];
      if (!Store.ready(chunk)) missing.add(chunk);
    }
    rows.replaceChildren(...made);
    if (active >= first && active < last) table.setAttribute("aria-activedescendant", `row-${active}`);
    if (missing.size) Promise.all([...missing].map(Store.load)).then(drawSoon);
  };

  let isDrawing = false;
  const drawSoon = () => {
    if (isDrawing) return;
    isDrawing = true;
    requestAnimationFrame(() => {
      isDrawing = false;
      draw();
    });
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
    drawSoon();
  };

  const openRow = (place) => {
    active = place;
    browser.classList.add("open");
    Page.remember({ open: String(place) });
    showSamples(found[place]);
    draw();
  };

  const showSamples = (shown) => Detail.show(index, shown, { choose: (sample) => showSamples(replaced(shown, sample)), close });

  // Of two samples side by side, the one of the same source changes.
  const replaced = (shown, sample) => {
    if (shown.length < 2) return [sample];
    return shown.map((known) => (samples.source[known] === samples.source[sample] ? sample : known));
  };

  const move = (place) => {
    if (!found.length) return;
    active = Math.max(0, Math.min(found.length - 1, place));
    const height = rowHeight();
    const top = active * height;
    const bottom = heads.offsetHeight + top + height;
    if (top < table.scrollTop) table.scrollTop = top;
    else if (bottom > table.scrollTop + table.clientHeight) table.scrollTop = bottom - table.clientHeight;
    if (browser.classList.contains("open")) openRow(active);
    else draw();
  };

  table.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.floor(table.clientHeight / rowHeight()) - 1);
    const moves = {
      ArrowDown: active + 1,
      ArrowUp: active - 1,
      PageDown: active + page,
      PageUp: active - page,
      Home: 0,
      End: found.length - 1,
    };
    if (event.key in moves) move(moves[event.key]);
    else if (event.key === "Enter" && active >= 0) openRow(active);
    else return;
    event.preventDefault();
  });
  browser.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && browser.classList.contains("open")) close();
  });
  rows.addEventListener("click", (event) => {
    const row = event.target.closest(".row");
    if (row) openRow(Number(row.dataset.place));
  });
  table.addEventListener("scroll", drawSoon, { passive: true });
  new ResizeObserver(drawSoon).observe(table);

  // --- the state in the address

  const setFrom = (state) => {
    for (const name of FIELDS) {
      const field = form.elements[name];
      if (field && state.get(name) !== null) field.value = state.get(name);
    }
  };

  let waiting = 0;
  const onInput = (event) => {
    Page.remember(valuesNow());
    clearTimeout(waiting);
    // A search reads all texts, so it waits until the reader has typed.
    waiting = setTimeout(apply, event.target.type === "search" || event.target.type === "text" ? 250 : 0);
  };
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", onInput);
  form.addEventListener("reset", () =>
    setTimeout(() => {
      Page.remember(valuesNow());
      apply();
    }),
  );
  Page.onStateChange.push(() => {
    form.reset();
    setFrom(Page.state());
    apply();
  });

  const { compared } = Runs.curves;
  if (compared.length) {
    form.elements.source.value = compared[0];
    form.elements.against.value = compared[1];
  }
  setFrom(Page.state());
  const opened = Page.state().get("open");
  await apply();
  if (opened !== null && found[Number(opened)]) {
    openRow(Number(opened));
    move(Number(opened));
  }
})().catch((error) => {
  document.getElementById("count").textContent = `This browser cannot show the samples: ${error.message}`;
  throw error;
});
