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

  const badge = ({ outcome }) => {
    const made = Page.element("span", "badge", outcome.replaceAll("_", " "));
    if (/^[a-z_]+$/.test(outcome)) made.classList.add(outcome);
    return made;
  };

  // The buttons of all samples of the question, by source; the shown samples are pressed.
  const siblings = (question, shown, choose) => {
    const rows = new Map();
    for (const sample of question.samples) {
      const { source } = sample;
      if (!rows.has(source)) rows.set(source, Page.element("div", "siblings", `Scores, ${source}: `));
      const made = Page.button("sibling", Page.number(sample.score), () => choose(sample));
      made.classList.add(sample.outcome === "correct" ? "right" : "not-right");
      made.setAttribute("aria-pressed", String(shown.includes(sample)));
      rows.get(source).append(made);
    }
    const box = Page.element("div");
    box.append(...rows.values());
    return box;
  };

  // What is known of a sample. The advantage is the reward minus the mean reward of the group.
  const factsOf = (sample) => {
    const facts = Page.element("p", "facts");
    facts.append(Page.element("b", "", sample.source), badge(sample));
    for (const name of ["score", "reward", "advantage", "tokens"]) {
      const value = sample[name];
      if (value === null && name !== "score") continue;
      const fact = Page.element("span");
      fact.append(Page.element("b", "", name), ` ${name === "advantage" && value > 0 ? "+" : ""}${Page.number(value)}`);
      facts.append(fact);
    }
    if (sample.failures.length) facts.append(Page.element("span", "", sample.failures.join(", ")));
    return facts;
  };

  const column = (texts, sample) => {
    const found = Page.element("div", "column");
    const own = texts.samples[sample.place];
    found.append(factsOf(sample), part("The model's answer", own.answer === null ? "(no answer was read)" : own.answer, "answer"));
    if (own.thinking) {
      const title = `Thinking (${own.thinking.length.toLocaleString("en")} characters)`;
      found.append(folded(title, own.thinking.length < SHORT, Page.element("pre", "", own.thinking)));
    }
    found.append(part("Reply", own.reply));
    found.append(promptOf(own.prompt));
    return found;
  };

  // Shows the samples (one, or two of different sources) of one question. `choose` is called with a sibling, and `step`
  // with 1 or -1 for the next or previous row.
  const show = async (shown, { choose, step, close }) => {
    calls += 1;
    const call = calls;
    const { question } = shown[0];
    const texts = await Store.load(question);
    if (call !== calls) return;
    const facts = [question.task];
    for (const name of ["level", "step", "item"]) {
      if (question[name] !== null) facts.push(`${name} ${question[name]}`);
    }
    const bar = Page.element("div", "detail-bar");
    const buttons = Page.element("span", "buttons");
    buttons.append(Page.button("", "previous", () => step(-1)), Page.button("", "next", () => step(1)), Page.button("", "close", close));
    bar.append(Page.element("h3", "", facts.join(" · ")), buttons);
    const columns = Page.element("div", shown.length > 1 ? "columns" : "");
    columns.append(...shown.map((sample) => column(texts, sample)));
    aside.replaceChildren(
      bar,
      siblings(question, shown, choose),
      part("Question", texts.question),
      part("Expected answer", texts.expected, "answer"),
      columns,
    );
    aside.hidden = false;
    aside.scrollTop = 0;
  };

  const hide = () => {
    calls += 1;
    aside.hidden = true;
    aside.replaceChildren();
  };

  return { show, hide, badge };
})();
