"""The Helm chart on a real API server, scheduler and kubelet, with NPUs that are only numbers.

`make test-k8s` runs it on a cluster of one node, which ends with it, and writes what came of it into
`results.json`. Nothing of it is left behind but programs in .cache/kubernetes and images in
.cache/compose. `tests/deploy/test_kubernetes.py` is the light part, in `make test`.
"""
