"""The Helm chart on a real API server, scheduler and kubelet, with NPUs that are only numbers.

`make test-k8s` runs it. `tests/deploy/test_kubernetes.py` is the light part, in `make test`.
"""
