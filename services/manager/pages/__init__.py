"""The pages of runs that a browser shows. The server renders them; htmx asks for their parts again.

`app.py` puts them together. Each page is a module with `routes(runs)`, where `runs` is what gRPC and
`/v1` ask as well: the manager's `Runs`, or a reader of run folders.
"""
