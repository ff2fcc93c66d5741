from trimaran.config import parse_config
config=parse_config({"model": {"path": "m"},"data": {"train": "d"},"reward": {"rules": {"exact_match": 1}},
 "rollout": {"device": "npu", "replicas": 2, "max_replicas": 4,"tensor_parallel":2},"trainer":{"device":"cpu","data_parallel":2}})
