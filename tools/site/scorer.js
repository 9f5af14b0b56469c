// Order of search results: guides before the reference, a heading before a word of the text.
var Scorer = {
  score: ([page, _title, _anchor, _description, score]) =>
    /^(reference|methods|changelog|internals|architecture|figures)/.test(page) ? score / 10 : score,
  objNameMatch: 11, objPartialMatch: 6, objPrio: {0: 15, 1: 5, 2: -5}, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
