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

// Words of the query that are on one page together, the rare ones first. Sphinx shows only pages with all words, so a
// word that no page has, as in "monthly spend per department", would find nothing.
var splitQuery = (query) => {
  const words = query.split(/[^\p{Letter}\p{Number}_]+/gu).filter((word) => word);
  const stemmer = new Stemmer();
  const pagesOf = (word) => {
    const stem = stemmer.stemWord(word.toLowerCase());
    const matches = (terms) =>
      Object.hasOwn(terms, stem) ? [terms[stem]] : stem.length < 3 ? [] :
        Object.keys(terms).filter((term) => term.includes(stem)).map((term) => terms[term]);
    return new Set([...matches(Search._index.terms), ...matches(Search._index.titleterms)].flat());
  };
  const found = words.filter((word) => !stopwords.has(word.toLowerCase())).map((word) => [word, pagesOf(word)]);
  let pages, kept = [];
  for (const [word, on] of found.sort((one, other) => one[1].size - other[1].size)) {
    const common = pages ? new Set([...on].filter((page) => pages.has(page))) : on;
    if (common.size) [pages, kept] = [common, [...kept, word]];
  }
  return words.filter((word) => kept.includes(word));
};
