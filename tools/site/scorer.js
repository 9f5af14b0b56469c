// Order of search results: guides before tutorials, both before pages for authors and contributors and the reference.
var Scorer = {
  score: ([page, _title, _anchor, _description, score]) =>
    /^(reference|methods|changelog|internals|architecture|figures|glossary|benchmarks|adding-an-algorithm)/.test(page)
      ? score / 10 : page.startsWith("tutorials") ? 0.9 * score : score,
  objNameMatch: 11, objPartialMatch: 6, objPrio: {0: 15, 1: 5, 2: -5}, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
