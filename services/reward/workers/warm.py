"""Imported by the fork server, before it forks: the libraries that check mathematics, warmed up.

Their first check builds tables of regular expressions for 0.1 to 0.2 s. A fresh process would pay
that from its first answer's time; as a fork it finds them made.
"""

from services.reward.rules import by_math_verify, by_mathruler

by_math_verify.concludes("The answer is $\\frac{1}{2}$.", "1")
by_math_verify.equal("1", "2")
by_mathruler.equal("\\frac{1}{3}", "x")
