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

  const folded = (title, text, isOpen) => {
    const details = Page.element("details");
    details.open = isOpen;
    details.append(Page.element("summary", "", title), Page.element("pre", "", text));
    return details;
  };

  const promptOf = (messages) => {
    const details = Page.element("details");
    details.append(Page.element("summary", "", "Whole prompt"));
    for (const [role, content] of messages) details.append(part(role, content));
    return details;
  };

  // The last message of the prompt is the question, perhaps with examples around it.
  const asked = (texts) => texts.question || texts.prompt.at(-1)?.[1] || "";

  const badge = (index, sample) => {
    const outcome = index.outcomes[index.samples.outcome[sample]];
    const made = Page.element("span", "badge", outcome.replaceAll("_", " "));
    if (/^[a-z_]+$/.test(outcome)) made.classList.add(outcome);
    return made;
  };

  const score = (index, sample) => {
    const value = index.samples.score[sample];
    return value === null ? "–" : String(Math.round(100 * value) / 100);
  };

  // The buttons of all samples of the question, by source; the shown samples are pressed.
  const siblings = (index, question, shown, choose) => {
    const rows = new Map();
    for (let sample = index.first[question]; sample < index.first[question + 1]; sample += 1) {
      const source = index.samples.source[sample];
      if (!rows.has(source)) rows.set(source, Page.element("div", "siblings", `${index.sources[source]} `));
      const made = Page.button("sibling", score(index, sample), () => choose(sample));
      made.classList.add(index.outcomes[index.samples.outcome[sample]] === "correct" ? "right" : "not-right");
      made.setAttribute("aria-pressed", String(shown.includes(sample)));
      rows.get(source).append(made);
    }
    const box = Page.element("div");
    box.append(...rows.values());
    return box;
  };

  const column = (index, texts, question, sample) => {
    const found = Page.element("div", "column");
    const own = texts.samples[sample - index.first[question]];
    const { samples } = index;
    const head = Page.element("p", "facts");
    head.append(Page.element("b", "", index.sources[samples.source[sample]]), badge(index, sample));
    const facts = [`score ${score(index, sample)}`, index.failures[samples.failure[sample]]];
    if (samples.tokens[sample] !== null) facts.push(`${Page.number(samples.tokens[sample])} tokens`);
    for (const fact of facts.filter(Boolean)) head.append(Page.element("span", "", fact));
    found.append(head, part("The model's answer", own.answer === null ? "(no answer was read)" : own.answer, "answer"));
    if (own.thinking) {
      const title = `Thinking (${own.thinking.length.toLocaleString("en")} characters)`;
      found.append(folded(title, own.thinking, own.thinking.length < SHORT));
    }
    found.append(part("Reply", own.reply));
    if (own.prompt) found.append(promptOf(own.prompt));
    return found;
  };

  // Shows the samples (one, or two of different sources) of one question. `choose` is called with a sibling.
  const show = async (index, shown, { choose, close }) => {
    calls += 1;
    const call = calls;
    const question = index.owner[shown[0]];
    const chunk = await Store.load(index.questions.chunk[question]);
    if (call !== calls) return;
    const texts = chunk[index.inChunk[question]];
    const { questions } = index;
    const bar = Page.element("div", "detail-bar");
    const facts = [index.tasks[questions.task[question]]];
    if (questions.level[question] !== null) facts.push(`level ${questions.level[question]}`);
    if (questions.step[question] !== null) facts.push(`step ${questions.step[question]}`);
    if (questions.item[question] !== null) facts.push(`item ${questions.item[question]}`);
    bar.append(Page.element("h3", "", facts.join(" · ")), Page.button("close", "close", close));
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

  return { show, hide, badge, score, asked, aside };
})();
