"""The rollout service: one replica, one inference engine.

    server ─▶ life, weights ─▶ Engine (engine.py) ◀─ vllm/ or transformers/
       └─▶ registration

Every engine uses these: `server` (the gRPC service), `life` (signs of life on a stream that waits),
`registration` (with weight sync), `deadlines`, `weights` (stage, commit, read back), `hosts` and
`spread` (a replica on several hosts, whose further ones run `follower`). An engine may
use these: `chat` (the model's chat template and tokens), `read_back` (digests of loaded tensors).
None of them imports an engine; `.importlinter` sees to it.

`vllm/` and `transformers/` are one engine each, and use nothing of each other. A new one is a folder
beside them with a class that keeps the contract of `engine.Engine`, and a line in
`trimaran.choices.ENGINES`; or a package of its own, which docs/extending.md shows.
"""
