// Scores of the site's search, instead of those of searchtools.js. Sphinx copies this file into the site.
// Rejected: the defaults. They rank a part of a word in a heading ("RAM" in "Programs") above the whole word in the text,
// and pages of equal score by their titles.
var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 4,
  term: 5,
  partialTerm: 2,
  // Of pages with equal scores: the FAQ, then guides, then the rest.
  score: ([page, , , , score]) => score + (page === "faq" ? 2 : /^(get-started|guides)\//.test(page) ? 1 : 0),
};
