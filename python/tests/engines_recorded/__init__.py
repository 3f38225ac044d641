"""Engines as the adapters expect them: modules, classes and parameter lists of the recorded releases, restated in our
own words.

Behind the parameter lists is the recurrence as it is defined, token by token, so that a call that is left to the engine
has an answer.
"""
