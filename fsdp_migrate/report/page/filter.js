"use strict";
(() => {
  // A page that is a file may have no storage: then boxes are forgotten, and nothing else is lost.
  const remember = (key, value) => {
    try {
      if (value === undefined) return localStorage.getItem(key);
      if (value) localStorage.setItem(key, "done");
      else localStorage.removeItem(key);
    } catch {
      return null;
    }
    return null;
  };
  const done = [...document.querySelectorAll(".done")];
  const progress = document.getElementById("progress");
  const tally = () => {
    if (progress) progress.textContent = `${done.filter((box) => box.checked).length} of ${done.length} done`;
  };
  for (const box of done) {
    const key = `fsdp-migrate ${box.dataset.key}`;
    box.hidden = false;
    box.checked = remember(key) === "done";
    box.addEventListener("change", () => {
      remember(key, box.checked);
      tally();
    });
  }
  if (progress) progress.hidden = false;
  tally();

  const copied = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
      return;
    } catch {
      // Not every browser lets a file use the clipboard.
    }
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  };
  for (const button of document.querySelectorAll(".copy")) button.hidden = false;
  document.addEventListener("click", async (event) => {
    const button = event.target.closest(".copy");
    if (!button) return;
    const parts = [...button.nextElementSibling.querySelectorAll(":scope > ins, :scope > span:not(.n):not(.place)")];
    await copied(parts.map((part) => part.textContent.replace(/^[ +]/gm, "")).join("\n") + "\n");
    const said = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = said), 1500);
  });

  const filter = document.getElementById("filter");
  if (!filter) return;
  const search = document.getElementById("search");
  const rule = document.getElementById("rule");
  const status = document.getElementById("status");
  const nothing = document.getElementById("nothing");
  const boxes = [...filter.querySelectorAll("input[name=level]")];
  const lower = (element) => (element ? element.textContent.toLowerCase() : "");

  // Read once, at the first search: with thousands of findings, asking the document at each key would be felt.
  const files = [...document.querySelectorAll(".file")].map((element) => ({
    element,
    counter: element.querySelector(".counter"),
    path: lower(element.querySelector(".path")),
    changes: [...element.querySelectorAll(".change")].map((change) => ({
      element: change,
      get code() {
        return (this.text ??= lower(change.querySelector(".diff")));
      },
      findings: [...change.querySelectorAll(".finding")].map((finding) => ({
        element: finding,
        get text() {
          return (this.words ??= lower(finding));
        },
        level: finding.dataset.level,
        rule: finding.dataset.rule,
      })),
    })),
  }));
  const total = files.reduce((sum, file) => sum + file.changes.reduce((n, change) => n + change.findings.length, 0), 0);
  const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
  const show = (element, wanted) => {
    if (element.hidden === wanted) element.hidden = !wanted;
  };

  const apply = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const levels = new Set(boxes.filter((box) => box.checked).map((box) => box.value));
    const filtered = words.length > 0 || rule.value !== "" || levels.size < boxes.length;
    const counts = Object.fromEntries(boxes.map((box) => [box.value, 0]));
    let shown = 0;
    let shownFiles = 0;
    for (const file of files) {
      let inFile = 0;
      let ofFile = 0;
      for (const change of file.changes) {
        let inChange = 0;
        for (const finding of change.findings) {
          const fits =
            levels.has(finding.level) &&
            (!rule.value || finding.rule === rule.value) &&
            words.every((word) => finding.text.includes(word) || change.code.includes(word) || file.path.includes(word));
          show(finding.element, fits);
          if (fits) {
            inChange += 1;
            counts[finding.level] += 1;
          }
        }
        show(change.element, inChange > 0);
        inFile += inChange;
        ofFile += change.findings.length;
      }
      // A file that was rewritten without a finding has nothing that a filter could keep.
      show(file.element, inFile > 0 || (ofFile === 0 && !filtered));
      file.counter.textContent = inFile === ofFile ? `${ofFile}` : `${inFile} of ${ofFile}`;
      shown += inFile;
      shownFiles += file.element.hidden ? 0 : 1;
    }
    for (const level of Object.keys(counts)) document.getElementById(`count-${level}`).textContent = counts[level];
    const findings = shown === total ? count(total, "finding") : `${shown} of ${count(total, "finding")}`;
    status.textContent = `${findings} in ${count(shownFiles, "file")}`;
    show(nothing, shownFiles === 0);
    const state = new URLSearchParams();
    if (search.value) state.set("search", search.value);
    if (rule.value) state.set("rule", rule.value);
    if (levels.size < boxes.length) state.set("level", [...levels].join(","));
    const wanted = state.toString();
    if (wanted || location.hash.includes("=")) {
      history.replaceState(null, "", wanted ? `#${wanted.replaceAll("%2C", ",")}` : location.href.split("#")[0]);
    }
  };

  // What stands after the # is a place on the page, or a state of the filters, which has an equals sign.
  const restore = () => {
    if (!location.hash.includes("=")) return false;
    const state = new URLSearchParams(location.hash.slice(1));
    search.value = state.get("search") ?? "";
    rule.value = state.get("rule") ?? "";
    const levels = state.get("level");
    for (const box of boxes) box.checked = levels === null || levels.split(",").includes(box.value);
    apply();
    return true;
  };

  const reset = () => {
    search.value = "";
    rule.value = "";
    for (const box of boxes) box.checked = true;
    apply();
  };

  const fold = (open) => {
    for (const file of files) {
      if (file.element.hidden) continue;
      file.element.open = open;
      for (const part of file.element.querySelectorAll("details")) part.open = open;
    }
  };

  // A link must lead to its target, also where that is folded or filtered out.
  const reveal = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    if (target.closest("[hidden]")) reset();
    for (let part = target.closest("details"); part; part = part.parentElement.closest("details")) part.open = true;
    target.scrollIntoView();
  };

  for (const card of document.querySelectorAll(".card")) {
    card.addEventListener("click", (event) => {
      event.preventDefault();
      location.hash = `level=${card.dataset.level}`;
    });
  }

  let timer;
  search.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(apply, 80);
  });
  filter.addEventListener("change", apply);
  filter.addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("reset").addEventListener("click", () => {
    reset();
    search.focus();
  });
  document.getElementById("expand").addEventListener("click", () => fold(true));
  document.getElementById("collapse").addEventListener("click", () => fold(false));
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !event.ctrlKey && !event.metaKey && !event.target.closest("input, select, textarea")) {
      event.preventDefault();
      search.focus();
    }
  });
  // Paper has no folds: what a reader needs is printed, the whole diffs only where they were opened.
  addEventListener("beforeprint", () => {
    for (const part of document.querySelectorAll("#changes .file, #changes .hunk")) part.open = true;
  });
  addEventListener("hashchange", () => {
    if (restore()) document.getElementById("changes").scrollIntoView();
    else reveal();
  });

  filter.hidden = false;
  // A browser may fill in what stood in the fields before a reload.
  if (!restore()) {
    apply();
    reveal();
  }
})();
