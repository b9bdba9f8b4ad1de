"""The semantic tier: answers to questions in another wording, with a certified error rate.

Pure, without a clock and I/O:

question.py      the text of a request that may be matched, and the frame: all the rest, which must be equal
words.py, differences.py, score.py    how two questions differ, and the risk that one answer is wrong
certificate.py   the levels of risk that may be served, shown by labels
learner.py       all of it, for the proxy and the lab
judge.py         whether two answers say the same: the labels
embedding.py, index.py    vectors of questions, and the nearest ones

In the proxy: call.py (one request), tier.py (the thread), matcher.py (matches), shared_state.py (index,
learners and log), judging.py (labels).
"""
