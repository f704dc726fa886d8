"use strict";
// What pages do beyond Sphinx and its theme: previews of glossary terms, the script's download.

const contentRoot = () => document.documentElement.dataset.content_root || "./";
const NOT_PROSE =
  "a, button, code, pre, .math, h1, h2, h3, h4, h5, h6, table, summary, script, .claim-mark";

document.addEventListener("DOMContentLoaded", () => {
  offerScript();
  const here = window.location.pathname;
  if (!document.querySelector(".bd-article") || here.endsWith("/book/glossary.html")) return;
  const script = document.createElement("script");
  script.src = `${contentRoot()}_static/glossary.js`;
  script.onload = () => linkTerms(window.glossaryTerms);
  document.head.append(script);
});

// Beside a chapter's .ipynb stands its .py.
function offerScript() {
  for (const link of document.querySelectorAll('.dropdown-download-buttons a[href$=".ipynb"]')) {
    if (!link.href.includes("/_sources/notebooks/")) continue;
    const item = link.closest("li").cloneNode(true);
    const copy = item.querySelector("a");
    copy.href = link.href.replace(/ipynb$/, "py");
    copy.title = "Download the notebook as a script";
    const text = copy.querySelector(".btn__text-container");
    if (text) text.textContent = ".py";
    link.closest("li").after(item);
  }
}

// The first place in the prose of a page where each term stands becomes a link to the glossary.
function linkTerms(terms) {
  const nodes = proseNodes();
  for (const term of terms) {
    const name = term.name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
    const pattern = new RegExp(`(?<![\\w-])${name}s?(?![\\w-])`, /^[a-z]/.test(term.name) ? "i" : "");
    const place = nodes.findIndex((node) => pattern.test(node.data));
    if (place < 0) continue;
    const match = pattern.exec(nodes[place].data);
    const word = nodes[place].splitText(match.index);
    nodes.splice(place + 1, 0, word.splitText(match[0].length));
    const link = document.createElement("a");
    link.className = "glossary-term";
    link.href = `${contentRoot()}book/glossary.html#${term.id}`;
    link.textContent = match[0];
    word.replaceWith(link);
    preview(link, term.html);
  }
}

// The pieces of text that may become links, in the order of the page.
function proseNodes() {
  const nodes = new Set(); // a paragraph of a list lies in two blocks
  for (const block of document.querySelectorAll(".bd-article p, .bd-article li")) {
    const walker = document.createTreeWalker(block, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      if (!walker.currentNode.parentElement.closest(NOT_PROSE)) nodes.add(walker.currentNode);
    }
  }
  return [...nodes];
}

let shown = null;
function hidePreview() {
  if (!shown) return;
  shown.link.removeAttribute("aria-describedby");
  shown.box.remove();
  shown = null;
}
document.addEventListener("keydown", (event) => event.key === "Escape" && hidePreview());

// Shown under the pointer and under the keyboard's focus alike; Escape hides it.
function preview(link, html) {
  const show = () => {
    hidePreview();
    const box = document.createElement("div");
    box.className = "glossary-preview";
    box.id = "glossary-preview";
    box.setAttribute("role", "tooltip");
    box.innerHTML = html;
    document.body.append(box);
    const at = link.getBoundingClientRect();
    const left = Math.min(at.left, document.documentElement.clientWidth - box.offsetWidth - 8);
    const below = at.bottom + box.offsetHeight + 8 < window.innerHeight;
    box.style.left = `${Math.max(8, left) + window.scrollX}px`;
    box.style.top = `${(below ? at.bottom + 6 : at.top - box.offsetHeight - 6) + window.scrollY}px`;
    link.setAttribute("aria-describedby", box.id);
    shown = { link, box };
  };
  link.addEventListener("mouseenter", show);
  link.addEventListener("focus", show);
  link.addEventListener("mouseleave", hidePreview);
  link.addEventListener("blur", hidePreview);
}
