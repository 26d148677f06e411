"""The forms that a caller may request of a text (JSON Schema, regex, grammar, ...): what is enforced, what it costs.

xgrammar enforces them. `regex` and `schema` refuse what xgrammar would ignore; both are pure. `trial` compiles a form
and generates tokens with it in a process that can be killed (`worker`), for the callers in turn (`trial_pool`).
"""
