"use strict";
// One question beside the table: the whole prompt, the answers, and the texts of one sample, or of two side by side.

const Detail = (() => {
  const aside = document.getElementById("detail");
  // Shorter thinking is unfolded.
  const SHORT = 1500;
  // The number of calls of `show` and `hide`. Texts that arrive after a later call are not shown.
  let calls = 0;

  const part = (title, text, className = "") => {
    const found = Page.element("div", `part ${className}`);
    found.append(Page.element("h3", "", title), Page.element("pre", "", text || "(empty)"));
    return found;
  };

  const folded = (title, isOpen, ...contents) => {
    const details = Page.element("details");
    details.open = isOpen;
    details.append(Page.element("summary", "", title), ...contents);
    return details;
  };

  const promptOf = (messages) => folded("Whole prompt", false, ...messages.map(([role, content]) => part(role, content)));

  // The last message of the prompt is the question, perhaps with examples around it.
  const asked = (texts) => texts.question || texts.prompt.at(-1)?.[1] || "";

  const badge = (index, sample) => {
    const outcome = index.outcomes[index.samples.outcome[sample]];
    const made = Page.element("span", "badge", outcome.replaceAll("_", " "));
    if (/^[a-z_]+$/.test(outcome)) made.classList.add(outcome);
    return made;
  };

  const rounded = (value) => (value === null ? "–" : String(Math.round(100 * value) / 100));
  const score = (index, sample) => rounded(index.samples.score[sample]);

  // The buttons of all samples of the question, by source; the shown samples are pressed.
  const siblings = (index, question, shown, choose) => {
    const rows = new Map();
    for (let sample = index.first[question]; sample < index.first[question + 1]; sample += 1) {
      const source = index.samples.source[sample];
      if (!rows.has(source)) rows.set(source, Page.element("div", "siblings", `Scores, ${index.sources[source]}: `));
      const made = Page.button("sibling", score(index, sample), () => choose(sample));
      made.classList.add(index.outcomes[index.samples.outcome[sample]] === "correct" ? "right" : "not-right");
      made.setAttribute("aria-pressed", String(shown.includes(sample)));
      rows.get(source).append(made);
    }
    const box = Page.element("div");
    box.append(...rows.values());
    return box;
  };

  // Label and value of what is known of a sample.
  const factsOf = ({ samples, failures }, sample) => {
    const facts = [["score", rounded(samples.score[sample])]];
    if (samples.reward[sample] !== null) facts.push(["reward", rounded(samples.reward[sample])]);
    const advantage = samples.advantage[sample];
    // The reward minus the mean reward of the group.
    if (advantage !== null) facts.push(["advantage", `${advantage > 0 ? "+" : ""}${rounded(advantage)}`]);
    if (samples.tokens[sample] !== null) facts.push(["tokens", Page.number(samples.tokens[sample])]);
    if (failures[samples.failure[sample]]) facts.push(["failure", failures[samples.failure[sample]]]);
    return facts;
  };

  const column = (index, texts, question, sample) => {
    const found = Page.element("div", "column");
    const own = texts.samples[sample - index.first[question]];
    const head = Page.element("p", "facts");
    head.append(Page.element("b", "", index.sources[index.samples.source[sample]]), badge(index, sample));
    for (const [name, value] of factsOf(index, sample)) {
      const fact = Page.element("span");
      fact.append(Page.element("b", "", name), ` ${value}`);
      head.append(fact);
    }
    found.append(head, part("The model's answer", own.answer === null ? "(no answer was read)" : own.answer, "answer"));
    if (own.thinking) {
      const title = `Thinking (${own.thinking.length.toLocaleString("en")} characters)`;
      found.append(folded(title, own.thinking.length < SHORT, Page.element("pre", "", own.thinking)));
    }
    found.append(part("Reply", own.reply));
    if (own.prompt) found.append(promptOf(own.prompt));
    return found;
  };

  // Shows the samples (one, or two of different sources) of one question. `choose` is called with a sibling, and `step`
  // with 1 or -1 for the next or previous row.
  const show = async (index, shown, { choose, step, close }) => {
    calls += 1;
    const call = calls;
    const question = index.owner[shown[0]];
    const chunk = await Store.load(index.questions.chunk[question]);
    if (call !== calls) return;
    const texts = chunk[index.inChunk[question]];
    const { questions } = index;
    const facts = [index.tasks[questions.task[question]]];
    for (const name of ["level", "step", "item"]) {
      if (questions[name][question] !== null) facts.push(`${name} ${questions[name][question]}`);
    }
    const bar = Page.element("div", "detail-bar");
    const buttons = Page.element("span", "buttons");
    buttons.append(Page.button("", "previous", () => step(-1)), Page.button("", "next", () => step(1)), Page.button("", "close", close));
    bar.append(Page.element("h3", "", facts.join(" · ")), buttons);
    const columns = Page.element("div", shown.length > 1 ? "columns" : "");
    for (const sample of shown) columns.append(column(index, texts, question, sample));
    aside.replaceChildren(
      bar,
      siblings(index, question, shown, choose),
      part("Question", asked(texts)),
      part("Expected answer", texts.expected, "answer"),
      columns,
      promptOf(texts.prompt),
    );
    aside.hidden = false;
    aside.scrollTop = 0;
  };

  const hide = () => {
    calls += 1;
    aside.hidden = true;
    aside.replaceChildren();
  };

  return { show, hide, badge, score, asked };
})();
