"""The semantic tier: answers to questions in another wording, with a certified error rate. Pure: no clock, no I/O.

question.py      the text of a request that may be matched, and the frame: all the rest, which must be equal
words.py, vetoes.py, features.py, score.py    how two questions differ, and the risk that one answer is wrong
certificate.py   the levels of risk that may be served, shown by labels
learner.py       all of it, for the proxy and the lab
judge.py         whether two answers say the same: the labels
reasons.py       why a question is not answered by similarity, in words
embedding/, index.py    vectors of questions, and the nearest ones
"""
