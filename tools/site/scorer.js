// Order of search results: the page whose title is searched for, guides, tutorials, then pages for authors and contributors
// and the reference.
const searched = (new URLSearchParams(location.search).get("q") || "").trim().toLowerCase();
var Scorer = {
  score: ([page, title, anchor, _description, score]) =>
    !anchor && title.toLowerCase() === searched ? 100 * score
      : /^(reference|methods|changelog|internals|architecture|figures|glossary|benchmarks|adding-an-algorithm)/.test(page)
      ? score / 10 : page.startsWith("tutorials") ? 0.9 * score : score,
  objNameMatch: 11, objPartialMatch: 6, objPrio: {0: 15, 1: 5, 2: -5}, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
